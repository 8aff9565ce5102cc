"""Unary operations: one function of one element each, over the table of unary functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import ELEMENT_BYTES, INTEGERS, Arch, DataType
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.ops.catalogue.definition import OpFunction, composite, op
from ttmesh.ops.catalogue.input_rules import UNARY_TYPES
from ttmesh.ops.catalogue.program_keys import unary_programs
from ttmesh.ops.catalogue.spec_rules import Inferred, like_first, make_output_spec
from ttmesh.ops.configs.activations import Activation, apply
from ttmesh.ops.elementwise.elementwise_buffers import unary_buffers
from ttmesh.ops.goldens import elementwise as goldens
from ttmesh.ops.lane_functions.unary_functions import PLAIN, WITH_PARAMETERS
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.operators import fill
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def check_output(call: Call) -> None:
    """Raise for an output tensor of another shape or layout."""
    given = call.outputs[0] if call.outputs else None
    if given is None:
        return
    spec = call.specs[0]
    if tuple(given.shape) != tuple(spec.shape):
        raise ShapeError(
            f"Unary: Preallocated output shape must match computed shape. Computed: {spec.shape!r}, "
            f"Preallocated: {given.shape!r}",
            expected="equal shapes",
            fix="Allocate the output with the input's shape.",
        )
    if given.layout is not spec.layout:
        raise MeshError(
            f"Unary: Output format (tile/row-major) must match input when preallocated. Output: {given.layout}, "
            f"Input: {spec.layout}",
            expected="equal layouts",
            fix="Allocate the output in the input's layout.",
        )
    wrong = (
        f"Preallocated output dtype DataType::{given.dtype.name} is not compatible with input dtype "
        f"DataType::{spec.dtype.name}. Integer and float dtypes cannot be mixed;"
    )
    require(
        (given.dtype in INTEGERS) == (spec.dtype in INTEGERS), wrong, "one kind of numbers", "Allocate another output."
    )


PAIRING = ("alt_complex_rotate90",)  # of two columns: a single number pairs with the padding


def _define_plain(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> OpFunction:
    def lane(input_tensor: torch.Tensor) -> torch.Tensor:
        return function(input_tensor)

    ours = inspect.isfunction(function) and function.__module__.startswith("ttmesh.")
    docstring = inspect.getdoc(function) if ours else None
    lane.__doc__ = docstring or f"{name} of every element."
    return op(
        f"ttnn.{name}",
        golden=goldens.UNARY[name],
        check=check_output,
        programs=unary_programs,
        scratch=unary_buffers,
        specialise=lambda case: torch.zeros_like if name in PAIRING and not case.specs[0].shape else function,
    )(lane)


def _define_with_parameters(name: str, function: Callable[..., torch.Tensor]) -> OpFunction:
    """Define an operation with number parameters; each number is a separate device program."""
    _, *parameter_names = inspect.signature(function).parameters

    def lane(input_tensor: torch.Tensor, **parameters: Any) -> torch.Tensor:
        return function(input_tensor, **parameters)

    lane.__doc__ = f"{name} of every element."
    return op(
        f"ttnn.{name}",
        golden=goldens.UNARY[name],
        check=CHECKS.get(name, check_output),
        takes=["input_tensor", *parameter_names],
        programs=unary_programs,
        scratch=unary_buffers,
        recheck=name in ("polygamma", "softcap"),
    )(lane)


def _check_polygamma(call: Call) -> None:
    if not 1 <= call["k"] <= 11:
        raise MeshError(
            f"polygamma order must be in range [1, 11], got {call['k']}",
            expected="an order from 1 to 11",
            fix="Use ttnn.digamma for order 0.",
        )


def _check_softcap(call: Call) -> None:
    dtype, arch = call.specs[0].dtype, call.mesh.arch()
    wrong = None
    if arch is not Arch.BLACKHOLE:
        wrong = f"Unary: SOFTCAP is implemented for Blackhole only, got arch {arch.name.lower()}"
    elif dtype not in (DataType.BFLOAT16, DataType.BFLOAT8_B):
        wrong = f"Unary: SOFTCAP supports BFLOAT16 and BFLOAT8_B inputs, got dtype {dtype}"
    elif not call["beta"]:
        wrong = "Unary: SOFTCAP requires a non-zero beta"
    if wrong:
        raise MeshError(
            wrong, expected="an input that TT-NN's kernel supports", fix="Compute beta * tanh(x / beta) instead."
        )
    check_output(call)


def _check_rounding(call: Call) -> None:
    if call["rounding_mode"] not in (None, "trunc", "floor"):
        raise MeshError(
            "Incorrect rounding mode (expected None, 'trunc', or 'floor')",
            expected=f"None, 'trunc' or 'floor', not {call['rounding_mode']!r}",
            fix="Leave rounding_mode out for a plain quotient.",
        )
    check_output(call)


CHECKS = {"polygamma": _check_polygamma, "softcap": _check_softcap, "rdiv": _check_rounding}

unary = {name: _define_plain(name, function) for name, function in PLAIN.items()} | {
    name: _define_with_parameters(name, function) for name, function in WITH_PARAMETERS.items()
}


fill(neg=unary["neg"], rdiv=unary["rdiv"])


def _check_chain(call: Call) -> None:
    if not call["ops_chain"]:
        raise MeshError("Op chain cannot be empty", expected="at least one function", fix="Use ttnn.identity to copy.")
    for step in call["ops_chain"]:
        kind = getattr(step, "op_type", step)
        rule = UNARY_TYPES.get(kind.name)
        if rule is not None:
            rule.check(call.specs[0])
    check_output(call)


@op(
    "ttnn.unary_chain",
    golden=goldens.unary_chain,
    check=_check_chain,
    programs=unary_programs,
    scratch=unary_buffers,
)
def unary_chain(input_tensor: torch.Tensor, ops_chain: Sequence[Activation]) -> torch.Tensor:
    """Several functions, left to right, in one program."""
    return apply(input_tensor, ops_chain)


def _bitcast_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, shape, dtype=call["dtype"]) for shape, _ in inferred]


@op("ttnn.bitcast", golden=goldens.bitcast, out=_bitcast_spec)
def bitcast(input_tensor: torch.Tensor, dtype: DataType, specs: Sequence[TensorSpec]) -> torch.Tensor:
    """The same bits as another format of the same size; of another size the low bits, which TT-NN leaves undefined."""
    if dtype not in ELEMENT_BYTES:  # blocks of 16 numbers, whose bits TT-NN leaves undefined
        return input_tensor.to(torch.bfloat16)
    source, target = specs[0].dtype, BITS[ELEMENT_BYTES[dtype]]
    bits = BITS[ELEMENT_BYTES[source]] if source in ELEMENT_BYTES else torch.int16
    values = input_tensor if source in ELEMENT_BYTES else input_tensor.to(torch.bfloat16)
    raw = (values.to(bits) if not values.dtype.is_floating_point else values.view(bits)).to(target)
    return raw.view(lane_dtype(dtype)) if lane_dtype(dtype).is_floating_point else raw


@op(
    "ttnn.logical_not_", golden=goldens.UNARY["logical_not"], out=like_first,
    writes="input_tensor", programs=unary_programs,
)  # fmt: skip
def logical_not_(input_tensor: torch.Tensor) -> torch.Tensor:
    """logical_not in place."""
    return torch.logical_not(input_tensor)


@composite("ttnn.composite_example", golden=goldens.UNARY["identity"])
def composite_example(input_tensor: Tensor) -> Tensor:
    """TT-NN's example of a composite: a copy of a copy."""
    copied: Tensor = unary["identity"](input_tensor, memory_config=DRAM_MEMORY_CONFIG)
    result: Tensor = unary["identity"](copied, memory_config=DRAM_MEMORY_CONFIG)
    return result


@composite("ttnn.composite_example_multiple_return")
def composite_example_multiple_return(
    input_tensor: Tensor, return_output1: bool, return_output2: bool
) -> list[Tensor | None]:
    """TT-NN's example of a composite with several results: copies, or None for those not requested."""
    return [unary["identity"](input_tensor) if requested else None for requested in (return_output1, return_output2)]
