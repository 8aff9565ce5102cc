"""What would give back what an operation loses: settings to try, and what each costs by the chip's cycles and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, MathFidelity
from ttmesh.chip.numerics.fpu_config import PHASES
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.tensor.observer import LaunchedProgram
from ttmesh.tensor.spec.tensor_spec import TensorSpec

CONFIG = "compute_kernel_config"
TILE = 32
CYCLES_PER_PHASE = 16  # of one core, for a product of two tiles
TILE_BYTES = {DataType.FLOAT32: 4096, DataType.BFLOAT16: 2048, DataType.BFLOAT8_B: 1088, DataType.BFLOAT4_B: 576}
BETTER_FORMATS = {
    DataType.BFLOAT4_B: DataType.BFLOAT8_B,
    DataType.BFLOAT8_B: DataType.BFLOAT16,
    DataType.BFLOAT16: DataType.FLOAT32,
}
EXACT_PRODUCTS = 1 << 28  # larger matmuls are not computed exactly beside the run
MATMULS = ("matmul", "linear", "addmm")


_SETTINGS = (  # fidelity (None: the call's own) and whether the destination has 32 bits
    (MathFidelity.HiFi2, False),
    (MathFidelity.HiFi4, False),
    (None, True),
    (MathFidelity.HiFi2, True),
    (MathFidelity.HiFi4, True),
)


@dataclass(frozen=True)
class Trial:
    """The same program with another setting or in another mode."""

    label: str
    body: Body
    cost: str


def trials(launch: LaunchedProgram) -> Iterator[Trial]:
    """Other modes and better settings of a program whose result depends on them."""
    if launch.vary is None or CONFIG not in launch.arguments:
        return
    mode, products = numerics_mode.current(), products_of(launch)
    for other in numerics_mode.MODES:
        if other != mode and (other != numerics_mode.EXACT or products <= EXACT_PRODUCTS):
            yield Trial(f"mode {other}", _in_mode(other, launch.vary, {}), "")
    if mode == numerics_mode.IDEAL:
        return
    given, now = launch.arguments[CONFIG], fidelity_of(launch)
    is_wide = given is not None and given.fp32_dest_acc_en
    for fidelity, wide in _SETTINGS:
        if (fidelity is not None and PHASES[fidelity] <= PHASES[now]) or (wide and is_wide):
            continue  # no better than what it has
        chosen = fidelity or now
        config = WormholeComputeKernelConfig(
            math_fidelity=chosen,
            math_approx_mode=getattr(given, "math_approx_mode", True),
            fp32_dest_acc_en=wide or is_wide,
            packer_l1_acc=getattr(given, "packer_l1_acc", True),
        )
        label = " + ".join(filter(None, [chosen.name if fidelity else "", "fp32_dest_acc_en" if wide else ""]))
        yield Trial(label, _in_mode(mode, launch.vary, {CONFIG: config}), describe_cost(launch, now, chosen, wide))


def _in_mode(mode: str, vary: Callable[[dict[str, Any]], Body], changes: dict[str, Any]) -> Body:
    before = numerics_mode.state.mode
    numerics_mode.state.mode = mode
    try:
        return vary(changes)
    finally:
        numerics_mode.state.mode = before


def fidelity_of(launch: LaunchedProgram) -> MathFidelity:
    """What the call's config says, else TT-NN's default for its formats."""
    given = launch.arguments.get(CONFIG)
    if given is not None:
        return given.math_fidelity if given.math_fidelity in PHASES else MathFidelity.LoFi
    formats = {spec.dtype for spec in launch.specs[:2]}
    chosen = launch.arguments.get("program_config") is not None or launch.arguments.get("core_grid") is not None
    return MathFidelity.LoFi if chosen or formats <= BLOCK_FLOATS else MathFidelity.HiFi2


def products_of(launch: LaunchedProgram) -> int:
    """Multiply-adds of a matmul on one chip; 0 for other operations."""
    if not is_matmul(launch):
        return 0
    a, b = (
        _matrix(spec, bool(launch.arguments.get(name))) for spec, name in zip(launch.specs, _TRANSPOSED, strict=False)
    )
    batch = max(prod(spec.shape[:-2]) for spec in launch.specs[:2])
    return batch * a[0] * a[1] * b[1]


def is_matmul(launch: LaunchedProgram) -> bool:
    """Whether it multiplies two matrices."""
    return launch.name.rpartition(".")[2] in MATMULS and len(launch.specs) >= 2 and len(launch.specs[1].shape) >= 2


_TRANSPOSED = ("transpose_a", "transpose_b")


def _matrix(spec: TensorSpec, transpose: bool) -> tuple[int, int]:
    rows, columns = (1, *spec.shape)[-2:]
    return (columns, rows) if transpose else (rows, columns)


def cycles(launch: LaunchedProgram, fidelity: MathFidelity) -> int:
    """Cycles of the FPU on one core, for all tiles of a matmul."""
    a, b = (
        _matrix(spec, bool(launch.arguments.get(name))) for spec, name in zip(launch.specs, _TRANSPOSED, strict=False)
    )
    batch = max(prod(spec.shape[:-2]) for spec in launch.specs[:2])
    tiles = batch * _tiles(a[0]) * _tiles(a[1]) * _tiles(b[1])
    return tiles * CYCLES_PER_PHASE * PHASES[fidelity]


def _tiles(size: int) -> int:
    return -(-size // TILE)


def describe_cost(launch: LaunchedProgram, before: MathFidelity, after: MathFidelity, wide: bool) -> str:
    """What a setting costs, in cycles of the FPU and room in its registers."""
    parts = []
    if is_matmul(launch):
        old, new = cycles(launch, before), cycles(launch, after)
        parts.append(f"{old:,} -> {new:,} cycles" if new != old else f"{new:,} cycles as before")
    if wide:
        parts.append("half the destination registers, partials of 4 B")
    return ", ".join(parts)


def describe_format(spec: TensorSpec) -> tuple[str, str] | None:
    """The next better format of a tensor and what it costs; None where there is none."""
    better = BETTER_FORMATS.get(spec.dtype)
    if better is None:
        return None
    ratio = TILE_BYTES[better] / TILE_BYTES[spec.dtype]
    return better.name.lower(), f"{ratio:.2g} times the bytes of {spec.dtype.name.lower()}"
