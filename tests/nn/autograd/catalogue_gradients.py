"""Compare the gradient of an operation's case with torch's of its golden: what tests/ops/harness.py is to results.

Every floating tensor argument is a leaf. The operation runs on a tape, every floating result gets a drawn gradient, another
one on each chip, and each chip's gradients are compared with torch's of the golden on that chip's values. Leaves that are
replicated over the chips get parts of a sum that way.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from harness import (
    WITHOUT_MEANING_IN_TORCH,
    Arguments,
    Case,
    Cell,
    On,
    _seen_by,
    arguments_on,
    device_tensor,
    lane_of,
    list_tensors,
    mesh_of,
)

from ttmesh.base.dtypes import FLOATS, DataType, bfloat16, float32
from ttmesh.chip.formats.storage import to_lane
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.parameters import place, replicate
from ttmesh.nn.tape import note, tape
from ttmesh.ops.catalogue import families
from ttmesh.tensor.tensor import Tensor

MESHES = ((1, 1), (1, 4), (2, 4))
PLACEMENTS = ("replicated", "sharded", "first sharded", "rows sharded")

# Leaves that the golden does not take part in as the operation does: case -> (places among the floating tensors, why).
UNCOMPARED: dict[str, tuple[tuple[int, ...], str]] = {
    "ttnn.experimental.rotary_embedding_llama": ((3,), "the golden rotates without the matrix"),
    "ttnn.experimental.rotary_embedding_llama/decode": ((3,), "the golden rotates without the matrix"),
    "ttnn.experimental.rotary_embedding_llama_fused_qk": ((4,), "the golden rotates without the matrix"),
    "ttnn.experimental.wan_fused_rmsnorm_post_allgather/turned": ((3,), "the golden rotates without the matrix"),
    "ttnn.experimental.deepseek_grouped_gate": ((0, 1), "the golden computes with Python's numbers"),
    "ttnn.transformer.gated_delta_attn_seq": ((0, 7), "one matrix is given twice, inverted too; the golden takes one"),
    "ttnn.experimental.deepseek_prefill.post_combine_reduce/local": ((1,), "weights of exactly 0 are masked there"),
    "ttnn.hardsigmoid_bw": ((0, 1), "torch has no second derivative"),
    "ttnn.moreh_layer_norm_backward": ((0, 1, 2, 3, 4), "torch has no second derivative"),
    "ttnn.moreh_group_norm_backward": ((0, 1, 2, 3, 4), "torch has no second derivative"),
    "ttnn.moreh_nll_loss": ((1, 2), "torch has no derivative by the weights"),
    "ttnn.moreh_nll_loss/mean": ((1, 2), "torch has no derivative by the weights"),
    "ttnn.moreh_nll_loss/none": ((1, 2), "torch has no derivative by the weights"),
    "ttnn.batch_norm": ((3, 4), "torch has no derivative by running statistics"),
    "ttnn.batch_norm/training": ((3, 4), "torch has no derivative by running statistics"),
    "ttnn.div_no_nan/zero": ((0,), "0, where torch's is 0 times infinity"),
    **{f"ttnn.moreh_{name}": ((0, 1, 2, 3, 4), "steps are taken without a graph") for name in ("adam", "adamw", "sgd")},
}

# Compared in float32 alone: in bfloat16 some arguments stand exactly at a kink, where the golden picks another slope,
# or a sum nearly cancels (moreh_dot_backward).
FLOAT32_ALONE = {
    f"ttnn.{name}"
    for name in (
        "adaptive_max_pool2d", "add/activations", "clamped_silu_glu", "clamp/tensors", "moreh_dot_backward", "nextafter",
        "relu_max", "relu_min",
    )
}  # fmt: skip

# Operations without a gradient, which say so: they write over an input that their derivative depends on, torch has
# none, or they are kept with the collectives and have no rule.
WITHOUT_GRADIENT = {
    f"ttnn.{name}"
    for name in (
        "multiply_", "squared_difference_", "logaddexp_", "logaddexp2_", "ldexp_", "bias_gelu_", "divide_",
        "softmax_in_place", "scale_mask_softmax_in_place", "scale_causal_mask_hw_dims_softmax_in_place",
        "transformer.attention_softmax_", "experimental.prefix_scan", "moreh_clip_grad_norm", "heaviside",
        "experimental.deepseek_moe_fast_reduce_nc", "experimental.indexed_fused_update_cache",
    )
}  # fmt: skip
REFUSAL = r"no gradient of ttnn\.|overwritten before backward"


def format_of(case: Case, wanted: DataType = float32) -> DataType:
    """The format of a case's leaves: the wanted one where the case knows it, else one of its own."""
    floats = [dtype for dtype in case.formats if dtype in FLOATS]
    return wanted if wanted in floats else (*floats, *case.formats, wanted)[0]


def cells(case: Case) -> list[Cell]:
    """Where a case's gradient is looked at."""
    return [
        Cell(dtype, layout, mesh, placement)
        for dtype in dict.fromkeys((format_of(case), format_of(case, bfloat16)))
        if dtype is not bfloat16 or case.name not in FLOAT32_ALONE
        for layout in case.layouts
        for mesh in MESHES
        for placement in PLACEMENTS
        if placement == "replicated" or (case.placements and mesh != (1, 1))
    ]


def compare(case: Case, cell: Cell) -> bool:
    """Compare a case's gradients on every chip; False where it has no floating result or no floating tensor."""
    devices = cell.mesh[0] * cell.mesh[1]
    seeds = range(devices) if cell.placement != "replicated" else [0] * devices
    per_device = [case.make(torch.Generator().manual_seed(seed)) for seed in seeds]
    with mesh_of(cell.mesh, "cpu", case.system) as mesh:
        args, kwargs = arguments_on(mesh, cell, per_device)
        leaves = [tensor for tensor in _flat([args, kwargs], Tensor) if tensor.dtype in FLOATS]
        with tape() as record:
            results = list_tensors(families.load()[case.operation].function(*args, **kwargs))
            floats = [tensor for tensor in results if tensor.dtype in FLOATS]
            drawn = [_gradient(mesh, tensor, i) for i, tensor in enumerate(floats)]
            loss = place(torch.zeros(1, 1), mesh, replicate(mesh), float32)
            note("a gradient for each result", floats, loss, lambda grad: drawn)
        if not floats or not leaves:
            return False
        found = record.backward(loss, leaves, seed=1.0)
        for device in range(devices):
            at = divmod(device, cell.mesh[1])
            asked = [lane_of(grad, at).float() for grad in drawn]
            flags = [tensor.dtype in FLOATS for tensor in results]
            expected = _expected(case, _seen_by(per_device, device, cell), flags, asked)
            for leaf, (tensor, got, want) in enumerate(zip(leaves, found, expected, strict=True)):
                if leaf not in UNCOMPARED.get(case.name, ((), ""))[0]:
                    _check(f"{case.name}, leaf {leaf} at {at}", tensor, None if got is None else lane_of(got, at), want)
    return True


def _gradient(mesh: MeshDevice, result: Tensor, seed: int) -> Tensor:
    lanes = torch.randn(*mesh.shape, *result.shape, generator=torch.Generator().manual_seed(100 + seed))
    given = On(lanes, result.dtype, result.layout)
    return device_tensor(mesh, to_lane(lanes, result.dtype), given, result.layout)


def _expected(
    case: Case, arguments: Arguments, is_float: list[bool], asked: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Torch's gradients of the golden's floating tensors, None where it has none."""
    leaves: list[torch.Tensor] = []
    skipped = UNCOMPARED.get(case.name, ((), ""))[0]

    def watch(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point():
            return value
        leaves.append(value.clone().requires_grad_(len(leaves) not in skipped))
        return leaves[-1].clone()

    args, kwargs = (_change(part, watch) for part in arguments)
    golden = case.golden or families.load()[case.operation].golden
    with _connected() as kept:
        made = golden(*args, **{name: value for name, value in kwargs.items() if name not in WITHOUT_MEANING_IN_TORCH})
    pieces = [made] if isinstance(made, torch.Tensor) else [part for part in made if part is not None]
    floats = [part for part, yes in zip(pieces, is_float, strict=True) if yes]
    pairs = [(part.float(), grad) for part, grad in zip(floats, asked, strict=True) if part.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    results, seeds = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(results, wanted, seeds, allow_unused=True))
    for tensor in kept:
        tensor.grad = None  # its graph holds the tensor
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


@contextlib.contextmanager
def _connected() -> Iterator[list[torch.Tensor]]:
    """Goldens that differentiate keep the graph, so that what they give can be differentiated in turn.

    Gives the tensors that keep a gradient with its graph.
    """
    kept: list[torch.Tensor] = []
    grad, backward, require = torch.autograd.grad, torch.autograd.backward, torch.Tensor.requires_grad_

    def require_or_keep(tensor: torch.Tensor, yes: bool = True) -> torch.Tensor:
        if tensor.is_leaf:
            return require(tensor, yes)
        tensor.retain_grad()
        kept.append(tensor)
        return tensor

    with contextlib.ExitStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of graphs that hold what they are of, and of numbers read from them
        for owner, name, function in (
            (torch.autograd, "grad", lambda *args, **options: grad(*args, **{**options, "create_graph": True})),
            (torch.autograd, "backward", lambda *args, **_: backward(*args, create_graph=True)),
            (torch.Tensor, "requires_grad_", require_or_keep),
            (torch.Tensor, "detach", lambda tensor: tensor),
        ):
            patches.enter_context(mock.patch.object(owner, name, function))
        yield kept


def _check(where: str, leaf: Tensor, got: torch.Tensor | None, want: torch.Tensor | None) -> None:
    shape = tuple(leaf.shape)
    have = torch.zeros(shape) if got is None else got.float()
    want = torch.zeros(shape) if want is None else want.float()
    assert tuple(have.shape) == shape, f"{where}: a gradient of shape {tuple(have.shape)} for {shape}"
    # float32: sums in another order. Others: rounded once per step back, so a few units of their mantissa.
    part = {DataType.FLOAT32: 2e-4, DataType.BFLOAT16: 2**-5, DataType.BFLOAT8_B: 2**-3}.get(leaf.dtype, 2**-1)
    finite = want[torch.isfinite(want)]
    atol = part * max(float(finite.abs().max()) if finite.numel() else 1.0, 1e-6)
    close = torch.isclose(have, want, rtol=part, atol=atol, equal_nan=True)
    assert bool(close.all()), (
        f"{where}: {int((~close).sum())} of {close.numel()} differ, "
        f"e.g. {have[~close][0].item()} for {want[~close][0].item()}"
    )


def _change(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _change(item, change) for name, item in value.items()}
    return type(value)(_change(item, change) for item in value) if isinstance(value, (list, tuple)) else value


def _flat(value: Any, kind: type) -> list[Any]:
    if isinstance(value, kind):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [found for item in items for found in _flat(item, kind)]
