"""Matmul and linear by the chip's arithmetic: TT-NN's defaults resolved for a call, then realistic or exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, Arch, BufferType, DataType, MathFidelity, bfloat16, float32
from ttmesh.chip.numerics import exact_matmul, realistic_matmul
from ttmesh.chip.numerics.fpu_config import PHASES, FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import add_elements
from ttmesh.chip.numerics.packer import pack, pack_lanes
from ttmesh.chip.numerics.unpacker import unpack
from ttmesh.ops.configs.matmul_program_configs import (
    MatmulMultiCoreReuseMultiCast1DProgramConfig,
    MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig,
    MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig,
    MatmulMultiCoreReuseProgramConfig,
    ProgramConfig,
)
from ttmesh.ops.lane_functions.gemm import equalize_pair, multiply_matrices
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.matmul.matmul_blocks import TILE, MatmulCase, tiles_per_block
from ttmesh.ops.matmul.matmul_rules import choose_program
from ttmesh.ops.matmul.matmul_stages import adds_bias_after
from ttmesh.tensor.calls.operation import Case
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

FORMATS = BLOCK_FLOATS | {bfloat16, float32}
DRAM_SHARDED = (
    MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig,
    MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig,
)
Matmul = Callable[..., torch.Tensor]


def fpu_matmul_of(
    case: Case, activation: Callable[[torch.Tensor], torch.Tensor] | None, *, exact: bool
) -> Matmul | None:
    """The matmul of a call in the FPU's arithmetic; None if the FPU does not compute it."""
    formats = {spec.dtype for spec in (*case.specs, *case.results)}
    if not formats <= FORMATS or min(len(spec.shape) for spec in case.specs[:2]) < 2:
        return None
    if any(0 in spec.shape for spec in case.specs):
        return None
    config, axes = resolve(case), case.lane_axes
    transpose_a, transpose_b = bool(case["transpose_a"]), bool(case["transpose_b"])
    bias_dtype = case.specs[2].dtype if len(case.specs) > 2 else None

    def compute(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        left, right = equalize_pair(a.mT if transpose_a else a, b.mT if transpose_b else b, axes)
        if exact:
            dest = exact_matmul.dest_of_lanes(left, right, config)
        else:
            packed = config.out_dtype is bfloat16 and bias is None and activation is None
            dest = realistic_matmul.dest_of_lanes(left, right, config, gemm=_gemm, packed=packed)
        if bias is not None and bias_dtype is not None:
            result, row = equalize_ranks([dest, bias], axes)
            add = _add_bias if config.fused_bias else _add_bias_after
            dest = add(result, row, bias_dtype, config) if exact else result + row.float()
        if activation is not None:
            dest = activation(dest)
        return pack_lanes(dest, config.out_dtype)

    return compute


def _gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return multiply_matrices(a, b) if a.dim() == b.dim() == 2 else torch.matmul(a, b)


def _add_bias(dest: torch.Tensor, bias: torch.Tensor, dtype: DataType, config: FpuConfig) -> torch.Tensor:
    """Add the bias in the matmul's program: the packed partial is unpacked into SrcA, the bias into SrcB."""
    partial_format = exact_matmul.partial_dtype(config)
    partial = unpack(pack(dest, partial_format), partial_format, fp32_dest=config.fp32_dest)
    return add_elements(partial, unpack(bias, dtype, fp32_dest=config.fp32_dest), config)


def _add_bias_after(dest: torch.Tensor, bias: torch.Tensor, dtype: DataType, config: FpuConfig) -> torch.Tensor:
    """Add the bias by a program of its own, as ttnn.add does with the matmul's result."""
    result = pack_lanes(dest, config.out_dtype)
    if config.out_dtype is dtype is float32:  # on the vector unit
        return result + bias
    wide = float32 in (config.out_dtype, dtype)
    left, right = unpack(result, config.out_dtype, fp32_dest=wide), unpack(bias, dtype, fp32_dest=wide)
    return add_elements(left, right, replace(config, fp32_dest=wide))


def resolve(case: Case) -> FpuConfig:
    """Fidelity, destination, partials and blocks as TT-NN 0.81.1 resolves them for this call."""
    a, b, out = case.specs[0], case.specs[1], case.results[0]
    config = _with_compute_config(case, a.dtype, b.dtype, out.dtype)
    l1_bytes = case.memory.banks[BufferType.L1].size
    matmul_case = MatmulCase(
        a,
        b,
        bool(case["transpose_a"]),
        bool(case["transpose_b"]),
        out.memory_config,
        out.dtype,
        config.fp32_dest,
        case.specs[2].dtype if len(case.specs) > 2 else None,
        case["core_grid"],
        case.memory.compute_grid,
        l1_bytes,
    )
    program = case["program_config"] or choose_program(matmul_case)
    tiles = tiles_per_block(matmul_case, program)
    if tiles is None:  # one tile of the output at a time, all of K in the destination
        return replace(config, packer_l1_acc=False)
    fused_bias = len(case.specs) > 2 and not adds_bias_after(case, case.specs[2])
    in_l1 = config.packer_l1_acc and div_up(matmul_case.k, tiles) > _most_blocks_reloaded(program, fused_bias)
    return replace(config, k_block=tiles * TILE, packer_l1_acc=in_l1, fused_bias=fused_bias)


def _most_blocks_reloaded(program: ProgramConfig | None, fused_bias: bool) -> int:
    """With up to so many blocks of K a program packs partials as without packer_l1_acc: in the result's format."""
    if isinstance(program, MatmulMultiCoreReuseProgramConfig):
        return 2
    if isinstance(program, MatmulMultiCoreReuseMultiCast1DProgramConfig):
        return 1 if fused_bias or program.mcast_in0 or program.gather_in0 else 2
    return 1 if fused_bias or isinstance(program, DRAM_SHARDED) else 2


def resolve_addmm(case: Case) -> FpuConfig | None:
    """The matmul in addmm: its second and third tensor."""
    return _resolve_pair(case, case.specs[1:3])


def resolve_sparse(case: Case) -> FpuConfig | None:
    """A sparse matmul is set up like any other."""
    return _resolve_pair(case, case.specs[:2])


def _resolve_pair(case: Case, specs: Sequence[TensorSpec]) -> FpuConfig | None:
    formats = {spec.dtype for spec in (*specs, *case.results)}
    if not formats <= FORMATS or any(0 in spec.shape for spec in specs):
        return None
    return resolve(replace(case, specs=specs))


def _with_compute_config(case: Case, a: DataType, b: DataType, out: DataType) -> FpuConfig:
    formats: dict[str, Any] = {"a_dtype": a, "b_dtype": b, "out_dtype": out}
    given: Any = case["compute_kernel_config"]
    if given is not None:
        fidelity = given.math_fidelity if given.math_fidelity in PHASES else MathFidelity.HiFi4
        return FpuConfig(case.arch, fidelity, given.fp32_dest_acc_en, given.packer_l1_acc, **formats)
    fp32_dest = out is float32
    if a is float32 and b is float32:
        fidelity = MathFidelity.HiFi4 if case.arch is Arch.BLACKHOLE else MathFidelity.HiFi3
    elif {a, b} <= BLOCK_FLOATS or case["core_grid"] is not None or case["program_config"] is not None:
        fidelity = MathFidelity.LoFi
    else:
        fidelity = MathFidelity.HiFi2
    return FpuConfig(case.arch, fidelity, fp32_dest, not fp32_dest, **formats)
