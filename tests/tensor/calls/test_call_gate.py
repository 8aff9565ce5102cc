"""What every call passes: its key, the table of fast paths, the plan, and who watches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import BufferType
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.fast_paths import BoundPath, PlanPath, ViewPath
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.calls.plan import Plan
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.observer import Step, Watcher, observer

KIB = 1024


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield opened
    ttnn.close_mesh_device(opened)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def on(mesh: ttnn.MeshDevice, shape: tuple[int, ...] = (1, 1, 32, 64)) -> ttnn.Tensor:
    return ttnn.from_torch(torch.rand(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)


def path(mesh: ttnn.MeshDevice, call: Any) -> Any:
    """The fast path that the second of two equal calls took."""
    call()
    known = set(mesh.plans)
    call()

    assert set(mesh.plans) == known, "a repeated call is found"
    return next(path for key, path in mesh.plans.items() if not isinstance(key[0], str))


def test_a_program_a_view_and_a_composite_have_routes_of_their_own(mesh: ttnn.MeshDevice) -> None:
    x = on(mesh)

    assert type(path(mesh, lambda: ttnn.relu(x))) is PlanPath
    mesh.plans.clear()
    assert type(path(mesh, lambda: ttnn.reshape(x, (1, 32, 64)))) is ViewPath
    mesh.plans.clear()
    assert type(path(mesh, lambda: ttnn.experimental.dropout(x, probability=0.5, scale=2.0, seed=1))) is BoundPath


def test_a_collective_is_an_operation_however_it_is_called(mesh: ttnn.MeshDevice) -> None:
    x = on(mesh)

    assert type(path(mesh, lambda: ttnn.all_reduce(x, cluster_axis=1))) is PlanPath
    mesh.plans.clear()
    assert type(path(mesh, lambda: ttnn.all_reduce(input_tensor=x, cluster_axis=1))) is PlanPath


def test_once_the_fabric_is_gone_only_collectives_that_ran_run(mesh: ttnn.MeshDevice) -> None:
    x, other = on(mesh), on(mesh, (1, 1, 64, 64))
    ttnn.all_reduce(x, cluster_axis=1)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)

    ttnn.all_reduce(x, cluster_axis=1)
    with pytest.raises(RuntimeError, match="Unsupported fabric config"):
        ttnn.all_reduce(other, cluster_axis=1)


def test_a_plan_says_what_a_call_needs(mesh: ttnn.MeshDevice) -> None:
    steps: list[Step] = []

    class Steps(Watcher):
        def after_run(self, step: Step) -> None:
            steps.append(step)

    config = ttnn.init_device_compute_kernel_config(mesh.arch(), math_fidelity=ttnn.MathFidelity.HiFi2)
    watcher = Steps()
    observer.add(watcher)
    try:
        ttnn.layer_norm(on(mesh), compute_kernel_config=config)
    finally:
        observer.remove(watcher)

    plan: Plan = steps[-1].plan
    assert plan.name == "ttnn.layer_norm"
    assert plan.programs
    assert plan.circular_buffer_bytes > 0
    assert ttnn.MathFidelity.HiFi2 in plan.compute_config


def test_temporaries_are_held_while_a_program_runs(mesh: ttnn.MeshDevice) -> None:
    held = ttnn.TensorSpec((1, 1, 32, 64 * KIB), ttnn.bfloat16, ttnn.TILE_LAYOUT)

    def stages(call: Call, results: Sequence[ttnn.TensorSpec]) -> tuple[Composition, list[PlannedTensor]]:
        composition = Composition()
        scratch, result = composition.allocate(held), composition.allocate(results[0])
        composition.free(scratch)
        composition.launch("test.copy")
        return composition, [result]

    @device_operation("test.copy", stages=stages)
    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    x, banks = on(mesh), mesh.heap.map.banks[BufferType.DRAM]
    before = mesh.heap.view(BufferType.DRAM).total_bytes_allocated_per_bank
    result = copied(x=x)
    again = copied(x=x)

    size = result.buffer.cell.bank_bytes
    assert torch.equal(ttnn.to_torch(ttnn.get_device_tensors(result)[0]), ttnn.to_torch(ttnn.get_device_tensors(x)[0]))
    assert mesh.heap.view(BufferType.DRAM).total_bytes_allocated_per_bank == before + 2 * size
    most = before + 2 * size + held.bytes_per_bank(banks.page_alignment, banks.count)
    assert mesh.heap.peak_bank_bytes(BufferType.DRAM) == most
    del again


def test_a_repeated_call_with_a_temporary_runs_out_of_memory_like_the_first(mesh: ttnn.MeshDevice) -> None:
    heap, x = mesh.heap, on(mesh, (1, 1, 32, 32))
    ttnn.deallocate(ttnn.sum(x, dim=-1))  # keeps its program

    def fill(bank_bytes: int) -> Buffer:
        return heap.allocate(BufferType.DRAM, bank_bytes, bank_bytes, bank_bytes, 1, "filler")

    spare, texts = fill(2 * KIB), []
    fillers = [
        fill(size) for size in iter(lambda: heap.view(BufferType.DRAM).largest_contiguous_bytes_free_per_bank, 0)
    ]
    for has_room_for_the_temporary in (False, True):
        if has_room_for_the_temporary:
            spare.deallocate()
        mesh.plans.clear()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Out of Memory") as caught:
                ttnn.sum(x, dim=-1)
            texts.append(str(caught.value))

    assert fillers
    assert texts[0] == texts[1] != texts[2] == texts[3]


class Calls(Watcher):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_operation(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen.append(f"before {operation.__name__}")

    def after_operation(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.seen.append(f"after {operation.__name__}")

    def after_launch(self, operation: Any, arguments: dict[str, Any], result: Any) -> None:
        self.seen.append(f"launch {operation.name}")

    def after_collective(self, name: str, decide: Any, tensors: Any, options: dict[str, Any], result: Any) -> None:
        self.seen.append(f"collective {name}")

    def after_upload(self, tensor: Any) -> None:
        self.seen.append("upload")


def test_a_watcher_sees_every_moment_of_known_and_new_calls(mesh: ttnn.MeshDevice) -> None:
    x = on(mesh)
    ttnn.relu(x)
    ttnn.all_reduce(x, cluster_axis=1)
    watcher = Calls()
    observer.add(watcher)
    try:
        ttnn.relu(on(mesh))
        ttnn.all_reduce(x, cluster_axis=1)
    finally:
        observer.remove(watcher)
    ttnn.relu(x)

    assert watcher.seen == [
        "upload", "before relu", "launch ttnn.relu", "after relu",
        "before all_reduce", "collective ttnn.all_reduce", "after all_reduce",
    ]  # fmt: skip
    assert not observer.active


def test_a_composite_that_fails_leaves_nobody_watching(mesh: ttnn.MeshDevice) -> None:
    x = on(mesh)

    with pytest.raises(RuntimeError):
        ttnn.reshape(x, (1, 32, 63))

    assert not observer.active


def test_the_first_use_of_an_enum_has_the_key_of_every_later_one() -> None:
    class Fresh(Enum):
        ONE = 1

    assert key_of(Fresh.ONE) == key_of(Fresh.ONE)
    assert key_of([Fresh.ONE, 2]) == key_of([Fresh.ONE, 2])
