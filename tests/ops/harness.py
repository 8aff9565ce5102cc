"""Compare an operation with its golden: one case over formats, layouts, placements and meshes.

A case file is tests/ops/cases/<family>.py with a list `CASES`. `make` gets a seeded generator and returns positional and
keyword arguments, with torch tensors where device tensors go: floating ones take the format under test, int32 ones do so
when an integer format is under test, all others the format that `from_torch` infers. `On(...)` fixes any of that.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import (
    BLOCK_FLOATS,
    FLOATS,
    INTEGERS,
    TILE_LAYOUT,
    DataType,
    Layout,
    MathFidelity,
    bfloat16,
    float32,
)
from ttmesh.base.geometry import MeshShape
from ttmesh.chip.formats.storage import infer_dtype, to_lane
from ttmesh.chip.numerics import fpu
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.mesh.queue.command_queue import Command
from ttmesh.ops.catalogue import families
from ttmesh.ops.catalogue.fpu_defaults import NOT_IN_TABLE
from ttmesh.ops.catalogue.input_rules import RULES, InputRule
from ttmesh.ops.elementwise import fpu_binary
from ttmesh.ops.matmul import matmul_fpu
from ttmesh.ops.requirements.operand_tables import OPERAND_RULES
from ttmesh.tensor.distribution.allocate import Footprint
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

Arguments = tuple[list[Any], dict[str, Any]]
MESHES = ((1, 1), (1, 8), (2, 4))
PLACEMENTS = ("replicated", "sharded", "first sharded", "rows sharded")


@dataclass(frozen=True)
class On:
    """A tensor argument with its own format, layout or memory."""

    values: torch.Tensor
    dtype: DataType | None = None
    layout: Layout | None = None
    memory_config: MemoryConfig = DRAM_MEMORY_CONFIG


@dataclass(frozen=True)
class Case:
    """One call of an operation: `name` is its name, perhaps with a remark after a slash."""

    name: str
    make: Callable[[torch.Generator], Arguments]
    dtypes: tuple[DataType, ...] = (bfloat16, float32)
    layouts: tuple[Layout, ...] = (TILE_LAYOUT,)
    pcc: float | None = 0.9999  # None: the error of every element alone, for values that are nearly equal
    atol: float | None = None  # None: a fraction of the largest value, by output format
    placements: bool = True  # False: replicated only
    golden: Callable[..., Any] | None = None  # instead of the operation's own
    system: str = "t3k"

    @property
    def operation(self) -> str:
        """The operation's name."""
        return self.name.partition("/")[0]

    @property
    def formats(self) -> list[DataType]:
        """The formats of the case that TT-NN takes (test_input_rules.py tests the others)."""
        rule, operand_rules = RULES.get(self.operation, InputRule()), OPERAND_RULES.get(self.operation, ())
        options = dict.fromkeys(["compute_kernel_config"])
        return [
            dtype
            for dtype in self.dtypes
            if dtype in rule.dtypes or not rule.wrong_dtype
            if all(
                one.accepts(TensorSpec((32, 32), dtype, TILE_LAYOUT), options) for one in operand_rules if one.is_format
            )
        ]


@dataclass(frozen=True)
class Cell:
    """One point of the matrix."""

    dtype: DataType
    layout: Layout
    mesh: tuple[int, int]
    placement: str


@functools.cache
def load_cases() -> list[Case]:
    """The cases of every file in cases/, by name, so that a sample does not depend on the files' names."""
    found: list[Case] = []
    for path in sorted((Path(__file__).parent / "cases").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
        assert spec, path
        assert spec.loader, path
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += module.CASES
    return sorted(found, key=lambda case: case.name)


def cells(case: Case) -> list[Cell]:
    """The full matrix of a case, without the formats and layouts that TT-NN refuses (test_input_rules.py)."""
    rule = RULES.get(case.operation, InputRule())
    return [
        Cell(dtype, layout, mesh, placement)
        for dtype in case.formats
        for layout in case.layouts
        if layout is rule.layout or not rule.wrong_layout
        if layout is TILE_LAYOUT or dtype not in BLOCK_FLOATS
        for mesh in MESHES
        for placement in PLACEMENTS
        if placement == "replicated" or (case.placements and mesh != (1, 1))
    ]


@contextmanager
def mesh_of(shape: tuple[int, int], backend: str, system: str = "t3k") -> Iterator[MeshDevice]:
    """A mesh of a system with eight chips."""
    before = {name: os.environ.get(name) for name in ("TTMESH_SYSTEM", "TTMESH_BACKEND")}
    os.environ.update(TTMESH_SYSTEM=system, TTMESH_BACKEND=backend)
    mesh = open_mesh_device(MeshShape(*shape))
    try:
        yield mesh
    finally:
        close_mesh_device(mesh)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def run(case: Case, cell: Cell, numerics: str = "ideal") -> None:
    """Run one cell (on the cpu, or where TTMESH_BACKEND says), compare every device with the golden, then run it on meta."""
    with numerics_mode.numerics(numerics), watch_fpus() as fpus:
        _run_and_compare(case, cell, fpus)


@contextmanager
def watch_fpus() -> Iterator[list[FpuConfig]]:
    """The settings of every FPU that is used inside."""
    used: list[FpuConfig] = []
    before = fpu.run_in

    def run_in(chosen: fpu.Fpu, lane: Callable[..., Any]) -> Callable[..., Any]:
        used.append(chosen.config)
        return before(chosen, lane)

    fpu.run_in = run_in
    kept = matmul_fpu.resolve

    def resolve(case: Any) -> FpuConfig:
        used.append(kept(case))
        return used[-1]

    own = fpu_binary.resolve

    def resolve_binary(case: Any, op_type: str) -> FpuConfig | None:
        config = own(case, op_type)
        used.extend([] if config is None else [config])
        return config

    matmul_fpu.resolve, fpu_binary.resolve = resolve, resolve_binary
    try:
        yield used
    finally:
        fpu.run_in, matmul_fpu.resolve, fpu_binary.resolve = before, kept, own


def _run_and_compare(case: Case, cell: Cell, fpus: list[FpuConfig]) -> None:
    backend = os.environ.get("TTMESH_BACKEND", "cpu")
    devices = cell.mesh[0] * cell.mesh[1]
    per_device = [
        case.make(torch.Generator().manual_seed(d if cell.placement != "replicated" else 0)) for d in range(devices)
    ]
    with mesh_of(cell.mesh, backend, case.system) as mesh:
        expected = [_golden(case, cell, _seen_by(per_device, d, cell)) for d in range(devices)]
        results = _run(case, cell, mesh, per_device)
        for device in range(devices):
            for got, want in zip(results, expected[device], strict=True):
                _compare(case, got, want, divmod(device, cell.mesh[1]), fpus)
        facts = [(r.spec, r.buffer_address()) for r in results]
        del results
    with mesh_of(cell.mesh, "meta", case.system) as mesh:
        dry = _run(case, cell, mesh, per_device)
        assert [(r.spec, r.buffer_address()) for r in dry] == facts, f"meta differs from {backend}"
        del dry


def device_tensor(mesh: MeshDevice, lanes: torch.Tensor, given: On, default: Layout) -> Tensor:
    """Lanes (already in the format's lane dtype) as a tensor on the mesh."""
    axes = mesh.shape.dims()
    assert given.dtype is not None, "formats are chosen before"
    spec = TensorSpec(
        tuple(lanes.shape[axes:]),
        given.dtype,
        default if given.layout is None else given.layout,
        memory_config=given.memory_config,
    )
    buffer = Footprint(spec, mesh.heap.map).allocate(mesh, "input")
    values = lanes.to(mesh.backend.device)
    mesh.launch(Command("write", lambda _, writes: writes[0].write(values, spec), [], [buffer.cell]))
    topology = TensorTopology.create_fully_replicated_tensor_topology(mesh.shape)
    return Tensor.on_device(kind_of(spec, topology), buffer, mesh)


def lane_of(tensor: Tensor, coordinate: Sequence[int]) -> torch.Tensor:
    """What one device holds."""
    mesh = tensor.device()
    assert mesh is not None, "the tensor is on the host"
    mesh.queue().finish()
    values = tensor.buffer.cell.read(tensor.spec)
    for index in coordinate:
        values = values[index if values.shape[0] > 1 else 0]
    return values


def pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    """Pearson's correlation; 1 for equal constants."""
    a, b = a.double().flatten(), b.double().flatten()
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite], b[finite]
    if a.numel() < 2 or a.std() == 0 or b.std() == 0:
        return 1.0 if torch.allclose(a, b, rtol=1e-2, atol=1e-2) else 0.0
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def _run(case: Case, cell: Cell, mesh: MeshDevice, per_device: list[Arguments]) -> list[Tensor]:
    args, kwargs = arguments_on(mesh, cell, per_device)
    function = families.load()[case.operation].function
    if numerics_mode.current() == numerics_mode.IDEAL:
        return list_tensors(function(*args, **kwargs))
    with _BesideTheFpu() as watch:
        results = list_tensors(function(*args, **kwargs))
    listed = case.operation in NOT_IN_TABLE or case.operation.endswith("_bw")
    assert listed or not watch.found, f"{case.name}: {sorted(watch.found)} by torch, and it is in no table of FPUs"
    return results


class _BesideTheFpu(TorchDispatchMode):
    """Finds matmuls and sums that torch computes while no FPU is in force."""

    FPU_WORK = frozenset({
        "mm", "bmm", "addmm", "baddbmm", "dot", "mv", "convolution", "mkldnn_convolution", "sum", "mean", "var", "var_mean",
        "std", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math", "avg_pool2d",
        "_adaptive_avg_pool2d", "native_layer_norm", "_softmax", "_log_softmax", "linalg_vector_norm", "cumsum",
    })  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at one function of torch; a sum over everything only looks for NaN."""
        name = func._overloadpacket.__name__
        floats = all(a.is_floating_point() and not a.is_meta and a.numel() for a in args if isinstance(a, torch.Tensor))
        whole = func is torch.ops.aten.sum.default
        if name in self.FPU_WORK and floats and not whole and fpu.active_config() is None:
            self.found.add(name)
        return func(*args, **(kwargs or {}))


def list_tensors(result: Any) -> list[Tensor]:
    """The tensors that an operation gave."""
    return [result] if isinstance(result, Tensor) else [tensor for tensor in result if tensor is not None]


def arguments_on(mesh: MeshDevice, cell: Cell, per_device: list[Arguments]) -> Arguments:
    """The arguments of all devices as tensors on their mesh."""
    count = [0]

    def put(path: list[Any]) -> Any:
        def find(d: int) -> Any:
            value: Any = per_device[d]
            for step in path:
                value = value[step]
            return value

        value = find(0)
        if isinstance(value, (torch.Tensor, On)):
            given, layout = _given(value, cell), cell.layout
            index = count[0]
            count[0] += 1
            lanes = [to_lane(_tensor(find(d)), given.dtype) for d in _drawn(cell, index)]
            stacked = torch.stack(lanes).reshape(*_mesh_dims(cell, index), *lanes[0].shape)
            return device_tensor(mesh, stacked, given, layout)
        if isinstance(value, (list, tuple)):
            return type(value)(put([*path, i]) for i in range(len(value)))
        return mesh if value == "mesh" else value

    args = [put([0, i]) for i in range(len(per_device[0][0]))]
    return args, {name: put([1, name]) for name in per_device[0][1]}


def _mesh_dims(cell: Cell, index: int) -> tuple[int, int]:
    rows, columns = cell.mesh
    if cell.placement == "replicated" or (cell.placement == "first sharded" and index > 0):
        return (1, 1)
    if cell.placement == "rows sharded":
        return (rows, 1) if index % 2 == 0 else (1, columns)
    return cell.mesh


def _drawn(cell: Cell, index: int) -> list[int]:
    """Whose values each stored lane of the tensor argument of this index has."""
    rows, columns = _mesh_dims(cell, index)
    return [r * cell.mesh[1] + c for r in range(rows) for c in range(columns)]


def _seen_by(per_device: list[Arguments], device: int, cell: Cell) -> Arguments:
    """The arguments one device computes with, tensors quantised."""
    count = [0]
    row, column = divmod(device, cell.mesh[1])

    def pick(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, (torch.Tensor, On)):
            rows, columns = _mesh_dims(cell, count[0])
            count[0] += 1
            owner = (row if rows > 1 else 0) * cell.mesh[1] + (column if columns > 1 else 0)
            given = _given(values[owner], cell)
            lane = to_lane(given.values, given.dtype)
            return lane.float() if given.dtype in FLOATS else lane
        if isinstance(first, (list, tuple)):
            return type(first)(pick([value[i] for value in values]) for i in range(len(first)))
        return None if first == "mesh" else first

    args = [pick([a[0][i] for a in per_device]) for i in range(len(per_device[0][0]))]
    kwargs = {name: pick([a[1][name] for a in per_device]) for name in per_device[0][1]}
    return args, kwargs


def _given(value: torch.Tensor | On, cell: Cell) -> On:
    given = value if isinstance(value, On) else On(value)
    if given.dtype is not None:
        return given
    values = given.values
    under_test = (values.is_floating_point() and cell.dtype in FLOATS) or (
        values.dtype == torch.int32 and cell.dtype in INTEGERS
    )
    dtype = cell.dtype if under_test else infer_dtype(values.dtype)
    return On(values, dtype, given.layout, given.memory_config)


def _tensor(value: torch.Tensor | On) -> torch.Tensor:
    return value.values if isinstance(value, On) else value


def _golden(case: Case, cell: Cell, arguments: Arguments) -> list[torch.Tensor]:
    golden = case.golden or families.load()[case.operation].golden
    assert golden is not None, f"{case.operation} has no golden"
    args, kwargs = arguments
    result = golden(*args, **{name: value for name, value in kwargs.items() if name not in WITHOUT_MEANING_IN_TORCH})
    list_tensors = [result] if isinstance(result, torch.Tensor) else [part for part in result if part is not None]
    return [part.detach() for part in list_tensors]


def _fpu_error(config: FpuConfig) -> float:
    """The part of the largest value that an FPU may be off: cut operands, and sums rounded to 8 bits."""
    cut = 2**-4 if config.fidelity is MathFidelity.LoFi else 2**-6 if config.fidelity is MathFidelity.HiFi2 else 2**-8
    return cut if config.fp32_dest else max(cut, 2**-4)


# Where a result goes and in which format is no concern of goldens.
WITHOUT_MEANING_IN_TORCH = ("memory_config", "device", "queue_id", "cq_id", "output_tensor")


def _compare(case: Case, got: Tensor, want: torch.Tensor, coordinate: Sequence[int], fpus: Sequence[FpuConfig]) -> None:
    values = lane_of(got, coordinate).cpu()
    where = f"{case.name} at {tuple(coordinate)}"
    assert tuple(values.shape) == tuple(want.shape), f"{where}: shape {tuple(values.shape)} != {tuple(want.shape)}"
    if got.dtype in INTEGERS:
        assert torch.equal(values.long(), want.long()), f"{where}: integers differ"
        return
    values, want = values.float(), want.float()
    if not values.numel():
        return
    # A float32 result may differ by the order of operations, the others by one rounding to their mantissa.
    part = {DataType.FLOAT32: 1e-4, DataType.BFLOAT16: 2**-7, DataType.BFLOAT8_B: 2**-5}.get(got.dtype, 2**-2)
    lost = max((_fpu_error(config) for config in fpus), default=0.0)
    part = max(part, lost)
    finite = want[torch.isfinite(want)]
    atol = (
        case.atol
        if case.atol is not None and not lost
        else part * (float(finite.abs().max()) if finite.numel() else 1.0)
    )
    close = torch.isclose(values, want, rtol=part, atol=atol, equal_nan=True)
    assert bool(close.all()), (
        f"{where}: {int((~close).sum())} of {close.numel()} differ, "
        f"e.g. {values[~close][0].item()} for {want[~close][0].item()}"
    )
    if case.pcc is None:
        return
    agreement = pcc(values, want)
    least = (
        case.pcc if got.dtype not in BLOCK_FLOATS else min(case.pcc, 0.99 if got.dtype is DataType.BFLOAT8_B else 0.9)
    )
    if lost:
        least = min(least, 1 - lost / 8)
    assert agreement >= least, f"{where}: PCC {agreement:.6f} < {least}"
