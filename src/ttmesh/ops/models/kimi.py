"""Operations around Kimi's delta attention: the short convolution before it, the gated norm after it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout, MathFidelity
from ttmesh.base.errors import one_of, require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.configs.compute_config import init_device_compute_kernel_config
from ttmesh.ops.goldens import model_blocks as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims, equalize_ranks
from ttmesh.ops.norm.layer_norm import normalize_rms
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE, TAPS = 32, 4
NAMES = ("input", "history", "tap0", "tap1", "tap2", "tap3")
CONV, NORM = "qkv_causal_conv1d_silu", "sigmoid_gated_rms_norm"


@dataclass(unsafe_hash=True)
class QkvCausalConv1dSiluProgramConfig:
    """How many channels a core works on at a time; the result does not depend on it."""

    channel_chunk_size: int


def _is_tiled(length: int) -> bool:
    return length > 0 and length % TILE == 0


def _require(operation: str, ok: bool, wrong: str, expected: str, fix: str) -> None:
    require(ok, f"{operation}: {wrong}", expected, fix)


def _check_common(call: Call, operation: str) -> None:
    memory_config, config = call["memory_config"], call["compute_kernel_config"]
    if memory_config is not None:
        wrong = f"output memory layout must be INTERLEAVED, got {memory_config.memory_layout.name}"
        if operation == NORM:
            wrong = "output memory configuration must be interleaved"
        _require(
            operation, memory_config.interleaved, wrong, "interleaved memory", "Pass an interleaved memory_config."
        )
    if config is not None:
        wrong = "packer_l1_acc=true is unsupported because the compute kernel does not accumulate through L1"
        _require(
            operation,
            not config.packer_l1_acc,
            wrong,
            "packer_l1_acc=False",
            "Set packer_l1_acc=False in compute_kernel_config.",
        )


def _check_conv(call: Call) -> None:
    x, history, *taps = call.specs
    _check_common(call, CONV)
    for i, (name, spec) in enumerate(zip(NAMES, call.specs, strict=True)):
        layout = Layout.ROW_MAJOR if i < 2 else Layout.TILE
        wrong = f"{name} must use {layout.name} layout, got Layout::{spec.layout.name}"
        _require(CONV, spec.layout is layout, wrong, f"{layout.name}_LAYOUT", "Convert it with ttnn.to_layout.")
        _require(
            CONV,
            spec.memory_config.interleaved,
            f"{name} must use interleaved memory",
            "interleaved memory",
            "Move it with ttnn.to_memory_config.",
        )
        _require(
            CONV,
            spec.dtype is DataType.BFLOAT16,
            f"{name} must be BFLOAT16, got {spec.dtype.name}",
            "bfloat16",
            "Convert it with ttnn.typecast.",
        )
    widths = [call["q_width"], call["k_width"], call["v_width"]]
    _require(
        CONV,
        all(width > 0 for width in widths),
        "Q/K/V widths must be positive",
        "widths of 1 or more",
        "Pass q_width, k_width and v_width.",
    )
    _require(
        CONV,
        all(map(_is_tiled, widths)),
        "Q/K/V widths must be tile aligned",
        f"multiples of {TILE}",
        "Pad the channels with ttnn.pad.",
    )
    chunk, channels = call["program_config"].channel_chunk_size, sum(widths)
    _require(
        CONV,
        chunk > 0,
        "channel_chunk_size must be positive",
        f"a multiple of {TILE}",
        "Set channel_chunk_size in program_config.",
    )
    _require(
        CONV,
        chunk % TILE == 0,
        "channel_chunk_size must be tile aligned",
        f"a multiple of {TILE}",
        "Choose another channel_chunk_size in program_config.",
    )
    _require(
        CONV,
        chunk <= channels,
        "channel_chunk_size must not exceed Q+K+V width",
        f"at most {channels}",
        "Choose another channel_chunk_size in program_config.",
    )
    _require(
        CONV,
        channels % chunk == 0,
        "channel_chunk_size must divide Q+K+V width exactly",
        f"a divisor of {channels}",
        "Choose another channel_chunk_size in program_config.",
    )
    has_shape = len(x.shape) == 3 and x.shape[0] == 1 and x.shape[2] == channels
    _require(CONV, has_shape, "input must be [1,T,Q+K+V]", f"[1, T, {channels}]", "Reshape it to that shape.")
    history_fits = tuple(history.shape) == (1, TAPS - 1, channels)
    _require(
        CONV, history_fits, "history must be [1,3,Q+K+V]", f"[1, {TAPS - 1}, {channels}]", "Reshape it to that shape."
    )
    _require(
        CONV,
        _is_tiled(x.shape[1]),
        "sequence must be positive and tile aligned",
        f"a multiple of {TILE}",
        "Pad the sequence with ttnn.pad.",
    )
    for i, spec in enumerate(taps):
        _require(
            CONV,
            spec.shape[-1] == channels,
            f"tap{i} last dimension must equal Q+K+V",
            str(channels),
            "Reshape the tap to that many values.",
        )
        _require(
            CONV,
            spec.shape.volume() == channels,
            f"tap{i} logical volume must equal Q+K+V",
            str(channels),
            "Reshape the tap to that many values.",
        )
    config = call["compute_kernel_config"]
    wrong = "math_approx_mode=true is unsupported because silu_tile always uses precise sigmoid"
    _require(
        CONV,
        config is None or not config.math_approx_mode,
        wrong,
        "math_approx_mode=False",
        "Set math_approx_mode=False in compute_kernel_config.",
    )


def _programs(call: Call) -> tuple[Hashable, ...]:
    """Identify the device program; TT-NN completes the compute config before it looks up the program."""
    is_norm = call.name.endswith(NORM)
    config = init_device_compute_kernel_config(
        call.mesh.arch(),
        call["compute_kernel_config"],
        math_fidelity=MathFidelity.HiFi4,
        math_approx_mode=is_norm,
        fp32_dest_acc_en=is_norm,
    )
    options = tuple(v for k, v in call.arguments.items() if k != "compute_kernel_config" and not isinstance(v, Tensor))
    return ((call.name, call.specs, options, config),)


def _conv_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = call["memory_config"] or DRAM_MEMORY_CONFIG
    return [TensorSpec(shape, DataType.BFLOAT16, Layout.TILE, memory_config=memory_config) for shape, _ in inferred]


@op(
    f"ttnn.experimental.kda.{CONV}",
    golden=goldens.qkv_causal_conv1d_silu,
    check=_check_conv,
    out=_conv_spec,
    programs=_programs,
)
def qkv_causal_conv1d_silu(
    input: Lanes,
    history: Lanes,
    tap0: Lanes,
    tap1: Lanes,
    tap2: Lanes,
    tap3: Lanes,
    q_width: int,
    k_width: int,
    v_width: int,
    lane_axes: int,
) -> list[Lanes]:
    """silu of a causal convolution over four rows, channel by channel, split into queries, keys and values."""
    window = torch.cat(align_mesh_dims([history.float(), input.float()], lane_axes), dim=-2)
    rows = input.shape[-2]
    taps = (tap.float().flatten(lane_axes)[..., None, None, :] for tap in (tap0, tap1, tap2, tap3))
    convolved = sum(tap * window[..., i : i + rows, :] for i, tap in enumerate(taps))
    assert isinstance(convolved, Lanes), "there are four taps"
    return list(torch.split(F.silu(convolved), [q_width, k_width, v_width], dim=-1))


def _check_norm(call: Call) -> None:
    x, gate, weight = call.specs[:3]
    formats = ({DataType.FLOAT32, DataType.BFLOAT16}, {DataType.BFLOAT16}, {DataType.BFLOAT16})
    for name, spec, allowed in zip(("input", "gate", "weight"), call.specs, formats, strict=False):
        _require(
            NORM,
            spec.layout is Layout.TILE,
            f"{name} must use TILE layout",
            "TILE_LAYOUT",
            "Convert it with ttnn.to_layout.",
        )
        _require(
            NORM,
            spec.memory_config.interleaved,
            f"{name} must use interleaved memory",
            "interleaved memory",
            "Move it with ttnn.to_memory_config.",
        )
        _require(
            NORM,
            spec.dtype in allowed,
            f"{name} has unsupported dtype DataType::{spec.dtype.name}",
            one_of(allowed),
            "Convert it with ttnn.typecast.",
        )
    _check_common(call, NORM)
    heads, epsilon, dtype = call["num_heads"], call["epsilon"], call["output_dtype"]
    _require(NORM, heads > 0, "num_heads must be positive", "num_heads of 1 or more", "Pass the number of heads.")
    supported = dtype in (None, DataType.FLOAT32, DataType.BFLOAT16)
    _require(
        NORM,
        supported,
        "output_dtype must be FLOAT32 or BFLOAT16",
        "float32 or bfloat16",
        "Pass one of these formats, or leave output_dtype out.",
    )
    _require(
        NORM,
        math.isfinite(epsilon) and epsilon > 0,
        "epsilon must be finite and positive",
        "a finite number above 0",
        "Pass a small positive epsilon.",
    )
    _require(NORM, len(x.shape) == 3, "input must be [B*H,T,V]", "3 dims", "Reshape it to that shape.")
    _require(
        NORM,
        x.shape[0] % heads == 0,
        "leading dimension must be divisible by num_heads",
        f"a multiple of {heads}",
        "Choose num_heads that divides the leading dim.",
    )
    _require(NORM, len(gate.shape) == 3, "gate must be [B,T,H*V]", "3 dims", "Reshape it to three dims.")
    _require(NORM, len(weight.shape) == 1, "weight must be [V]", "1 dim", "Reshape it to one dim.")
    gate_shape = (x.shape[0] // heads, x.shape[1], heads * x.shape[2])
    _require(
        NORM,
        tuple(gate.shape) == gate_shape,
        "gate must have shape [B,T,H*V]",
        str(list(gate_shape)),
        "Reshape it to that shape.",
    )
    _require(
        NORM,
        weight.shape.volume() == x.shape[2],
        "weight volume must equal V",
        str(x.shape[2]),
        "Pass one weight per value.",
    )
    _require(
        NORM,
        _is_tiled(x.shape[1]),
        "sequence must be positive and tile aligned",
        f"a multiple of {TILE}",
        "Pad the sequence with ttnn.pad.",
    )
    _require(
        NORM,
        _is_tiled(x.shape[2]),
        "value_dim must be positive and tile aligned",
        f"a multiple of {TILE}",
        "Pad the values with ttnn.pad.",
    )


def _norm_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    dtype = call["output_dtype"] or DataType.FLOAT32
    memory = DRAM_MEMORY_CONFIG if call["memory_config"] is None else None
    return [make_output_spec(call, inferred[0][0], dtype=dtype, layout=Layout.TILE, memory_config=memory)]


@op(
    f"ttnn.experimental.kda.{NORM}",
    golden=goldens.sigmoid_gated_rms_norm,
    check=_check_norm,
    out=_norm_spec,
    programs=_programs,
)
def sigmoid_gated_rms_norm(
    input: Lanes, gate: Lanes, weight: Lanes, num_heads: int, epsilon: float, lane_axes: int
) -> Lanes:
    """RMS norm of every head, with the heads concatenated, times sigmoid of a gate."""
    heads = torch.unflatten(input.float(), lane_axes, (-1, num_heads))
    normed, scale = equalize_ranks([normalize_rms(heads, epsilon), weight.float()], lane_axes)
    return (normed * scale).transpose(-3, -2).flatten(-2) * torch.sigmoid(gate.float())
