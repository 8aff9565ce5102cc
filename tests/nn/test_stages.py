"""A model in stages over submeshes trains as plain torch does, under both schedules, and refuses what cannot work."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from gpt_pair import HEADS, WIDTH, TorchGPT, batch_of, opened, torch_losses

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.records import Finished
from ttmesh.base.signals import signals
from ttmesh.mesh.functions.memory_reports import peak_bytes
from ttmesh.nn.batches import pad_batch
from ttmesh.nn.checkpoints import load_checkpoint, save_checkpoint
from ttmesh.nn.layers import MLP, Attention, Embedding, Layer, LayerNorm, Linear
from ttmesh.nn.losses import cross_entropy
from ttmesh.nn.optimisers import SGD, AdamW
from ttmesh.nn.stages import Staged
from ttmesh.nn.staging.stage_schedules import SCHEDULES, Action, make_plan, order_actions
from ttmesh.nn.zero import Zero


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    yield
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


class Residual(Layer):
    """A layer behind a norm and around a residual."""

    def __init__(self, mesh: ttnn.MeshDevice, inner: Layer) -> None:
        self.norm, self.inner = LayerNorm(mesh, WIDTH, dtype=ttnn.float32), inner

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.add(x, self.inner(self.norm(x)))


class Head(Layer):
    def __init__(self, mesh: ttnn.MeshDevice, weight: torch.Tensor) -> None:
        self.norm, self.linear = LayerNorm(mesh, WIDTH, dtype=ttnn.float32), Linear(mesh, weight, dtype=ttnn.float32)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return self.linear(self.norm(x))


def layers(axis: int | None = None) -> list:
    """gpt_pair's model as four layers, weights cut along an axis of the stage."""
    like = TorchGPT()
    options = {"axis": axis, "dtype": ttnn.float32}
    return [
        lambda mesh: Embedding(mesh, like.table, **options),
        lambda mesh: Residual(mesh, Attention(mesh, like.qkv, like.out, HEADS, **options)),
        lambda mesh: Residual(mesh, MLP(mesh, like.up, like.down, ttnn.gelu, **options)),
        lambda mesh: Head(mesh, like.head),
    ]


def curve(
    stage_shape: tuple[int, int],
    steps: int,
    *,
    clip: float | None = None,
    mesh_shape: tuple[int, int] = (2, 4),
    **options,
) -> list[float]:
    found = []
    with opened(mesh_shape, fabric=True) as mesh:
        meshes = mesh.create_submeshes(ttnn.MeshShape(*stage_shape))
        axis = options.pop("axis", None)
        model = Staged(meshes, layers(axis), cross_entropy, **options)
        optimisers = [AdamW(stage.parameters, 1e-3) for stage in model.stages]
        for step in range(steps):
            losses = model.differentiate(*batch_of(step))
            model.synchronize_gradients()
            if clip is not None:
                model.clip_gradients(clip)
            for optimiser in optimisers:
                optimiser.step()
            model.zero_grad()
            found.append(model.mean_loss(losses))
        del losses, optimiser, optimisers, model, meshes
    return found


def furthest(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


PLACES = {
    "two stages of 2x2, data x tensor parallel": ((2, 2), {"batch_axis": 0, "axis": 1, "micro_batches": 4}),
    "four stages of 2x1, data parallel": ((2, 1), {"batch_axis": 0, "micro_batches": 2}),
    "two stages of 1x4, tensor parallel": ((1, 4), {"axis": 1, "micro_batches": 8}),
    "one stage": ((2, 4), {"batch_axis": 0, "axis": 1, "micro_batches": 2}),
    "fewer micro-batches than stages": ((1, 2), {"axis": 1, "micro_batches": 2}),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("place", PLACES)
def test_curves_are_torchs(place: str, schedule: str) -> None:
    shape, options = PLACES[place]

    found = curve(shape, 10, schedule=schedule, **options)

    assert furthest(found, torch_losses(10)) < 1e-5


def test_clipping_takes_the_norm_over_all_stages() -> None:
    expected = torch_losses(10, clip=0.05)

    found = curve((2, 2), 10, clip=0.05, batch_axis=0, axis=1, micro_batches=2)

    assert furthest(found, expected) < 1e-5
    assert furthest(found, torch_losses(10)) > 1e-5


@pytest.mark.parametrize("how", ["async", "adversarial"])
def test_queues_of_their_own_give_the_same_curve(how: str) -> None:
    expected = curve((2, 2), 3, batch_axis=0, axis=1, micro_batches=4)
    ttmesh.configure(schedule=how)

    try:
        found = curve((2, 2), 3, batch_axis=0, axis=1, micro_batches=4)
    finally:
        settings.override("TTMESH_SCHEDULE", None)

    assert found == expected


class Meeting:
    """Keeps the first stage in its second micro-batch and the second stage in its first until both are there."""

    def __init__(self, first: int, second: int) -> None:
        self._places = [(first, "ttmesh.lookup"), (first, "ttmesh.lookup"), (second, "ttnn.layer_norm")]
        self._both = threading.Barrier(2)
        self.met = 0

    def hear(self, record: object) -> None:
        """Take a record, on the thread of its queue: while this waits, that queue does."""
        if not isinstance(record, Finished) or (place := (record.mesh_id, record.name)) not in self._places:
            return
        self._places.remove(place)
        if place not in self._places:
            self._both.wait(timeout=180)
            self.met += 1


def test_stages_with_workers_of_their_own_run_at_the_same_time() -> None:
    ttmesh.configure(schedule="async")
    try:
        with opened((1, 2), fabric=True) as mesh:
            meshes = mesh.create_submeshes(ttnn.MeshShape(1, 1))
            model = Staged(meshes, layers(), cross_entropy, micro_batches=8)
            meeting = Meeting(*(stage.id() for stage in meshes))
            stop = signals.listen(meeting.hear, commands=True)
            model.differentiate(*batch_of(0))
            mesh.quiesce_devices()
            stop()
            del model, meshes
    finally:
        settings.override("TTMESH_SCHEDULE", None)

    assert meeting.met == 2


def test_a_padded_batch_has_the_gradients_of_its_real_rows() -> None:
    like = TorchGPT()
    tokens, targets = (part[:5] for part in batch_of(0))
    expected = torch.nn.functional.cross_entropy(like(tokens).flatten(0, 1), targets.flatten().long())
    expected.backward()
    with opened((2, 4), fabric=True) as mesh:
        model = Staged(
            mesh.create_submeshes(ttnn.MeshShape(2, 2)), layers(1), cross_entropy, micro_batches=2, batch_axis=0
        )
        batch = pad_batch(tokens, targets, parts=model.parts)

        losses = model.differentiate(*batch.tensors, batch.weights)
        model.synchronize_gradients()

        assert batch.tensors[0].shape[0] == 8
        assert model.mean_loss(losses) == pytest.approx(expected.item(), rel=1e-6)
        head = model.stages[-1].parameters["3.linear.weight"]
        gradient = ttnn.to_torch(ttnn.get_device_tensors(head.grad)[0])
        torch.testing.assert_close(gradient, like.head.grad, rtol=1e-4, atol=1e-6)
        del losses, head, model


def test_one_forward_one_backward_keeps_fewer_activations() -> None:
    peaks = {}
    for schedule in SCHEDULES:
        with opened((1, 2), fabric=True) as mesh:
            meshes = mesh.create_submeshes(ttnn.MeshShape(1, 1))
            model = Staged(meshes, layers(), cross_entropy, micro_batches=8, schedule=schedule)
            before = [_allocated(stage) for stage in meshes]
            model.differentiate(*batch_of(0))
            peaks[schedule] = [
                peak_bytes(stage, ttnn.BufferType.DRAM) - used for stage, used in zip(meshes, before, strict=True)
            ]
            del model, meshes

    assert [_most_kept(schedule, 2, 8) for schedule in ("gpipe", "1f1b")] == [[8, 8], [2, 1]]
    assert all(few < many / 2 for few, many in zip(peaks["1f1b"], peaks["gpipe"], strict=True)), peaks


def _allocated(mesh: ttnn.MeshDevice) -> int:
    view = ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM)
    return view.num_banks * view.total_bytes_allocated_per_bank


def _most_kept(schedule: str, stages: int, micro_batches: int) -> list[int]:
    most, kept = [0] * stages, [0] * stages
    for action in order_actions(make_plan(schedule, stages, micro_batches)):
        kept[action.stage] += 1 if action.forward else -1
        most[action.stage] = max(most[action.stage], kept[action.stage])
    return most


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (3, 8), (4, 2)])
def test_every_stage_takes_every_micro_batch_once_each_way(schedule: str, stages: int, micro_batches: int) -> None:
    order = order_actions(make_plan(schedule, stages, micro_batches))

    assert len(order) == len(set(order)) == 2 * stages * micro_batches
    for action in order:
        if not action.forward:
            assert order.index(Action(action.stage, action.micro, True)) < order.index(action)


def test_activations_cross_the_links_between_stages() -> None:
    with opened((1, 2), fabric=True) as mesh:
        first, second = mesh.create_submeshes(ttnn.MeshShape(1, 1))
        model = Staged([first, second], layers(), cross_entropy, micro_batches=2)
        first.traffic.counters.reset()

        model.differentiate(*batch_of(0))

        message = 4 * 32 * WIDTH * 4  # four rows of sixteen tokens (a tile has 32), float32
        ends = (first.get_device_ids()[0], second.get_device_ids()[0])
        assert first.traffic.counters.loads() == dict.fromkeys((ends, ends[::-1]), 2 * message)
        del model


def test_what_cannot_work_is_refused() -> None:
    with opened((2, 4), fabric=True) as mesh:
        meshes = mesh.create_submeshes(ttnn.MeshShape(2, 2))
        uneven = [mesh.create_submesh(ttnn.MeshShape(1, 2)), mesh.create_submesh(ttnn.MeshShape(1, 1))]
        model = Staged(meshes, layers(), cross_entropy, micro_batches=2, batch_axis=0)

        with pytest.raises(RuntimeError, match=r"no meshes to put stages on"):
            Staged([], layers(), cross_entropy, micro_batches=2)
        with pytest.raises(RuntimeError, match=r"shapes \[\[1, 2\], \[1, 1\]\]; expected meshes of one shape"):
            Staged(uneven, layers(), cross_entropy, micro_batches=2)
        with pytest.raises(RuntimeError, match=r"are in several stages"):
            Staged([meshes[0], meshes[0]], layers(), cross_entropy, micro_batches=2)
        with pytest.raises(RuntimeError, match=r"1 layers in 2 stages of \[1, 0\] layers"):
            Staged(meshes, layers()[:1], cross_entropy, micro_batches=2)
        with pytest.raises(RuntimeError, match=r"4 layers in 2 stages of \[1, 2\] layers"):
            Staged(meshes, layers(), cross_entropy, micro_batches=2, counts=[1, 2])
        with pytest.raises(
            RuntimeError, match=r"no pipeline schedule named 'zigzag'; expected one of \['1f1b', 'gpipe'\]"
        ):
            Staged(meshes, layers(), cross_entropy, micro_batches=2, schedule="zigzag")
        with pytest.raises(RuntimeError, match=r"a step of 0 micro-batches; expected one or more"):
            Staged(meshes, layers(), cross_entropy, micro_batches=0)
        with pytest.raises(RuntimeError, match=r"stage 1 has no parameters"):
            Staged(meshes, [*layers(), lambda _: ttnn.relu], cross_entropy, micro_batches=1, counts=[4, 1])
        with pytest.raises(RuntimeError, match=r"6 and 6 rows in 2 micro-batches; expected .* multiple of 4"):
            model.differentiate(*(part[:6] for part in batch_of(0)))
        with pytest.raises(RuntimeError, match=r"no parameter has a gradient"):
            model.clip_gradients(1.0)
        del model, meshes, uneven


def test_stages_need_links() -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    with opened((1, 2)) as mesh:
        model = Staged(mesh.create_submeshes(ttnn.MeshShape(1, 1)), layers(), cross_entropy, micro_batches=2)

        with pytest.raises(RuntimeError, match="set_fabric_config"):
            model.differentiate(*batch_of(0))
        del model


def test_a_staged_run_goes_on_on_another_number_of_stages(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    found = []
    for shape, steps in (((2, 2), range(3)), ((2, 1), range(3, 6)), ((2, 4), range(6, 8))):  # two stages, four, one
        with opened((2, 4), fabric=True) as mesh:
            meshes = mesh.create_submeshes(ttnn.MeshShape(*shape))
            model = Staged(meshes, layers(1), cross_entropy, micro_batches=4, batch_axis=0)
            optimisers = [AdamW(stage.parameters, 1e-3) for stage in model.stages]
            if file.exists():
                load_checkpoint(file, *optimisers)
            for step in steps:
                losses = model.differentiate(*batch_of(step))
                model.synchronize_gradients()
                for optimiser in optimisers:
                    optimiser.step()
                model.zero_grad()
                found.append(model.mean_loss(losses))
            save_checkpoint(file, *optimisers)
            del losses, optimiser, optimisers, model, meshes

    assert furthest(found, torch_losses(8)) < 1e-5


def test_a_stage_may_cut_its_optimiser_state() -> None:
    found = []
    with opened((2, 4), fabric=True) as mesh:
        model = Staged(
            mesh.create_submeshes(ttnn.MeshShape(2, 2)), layers(1), cross_entropy, micro_batches=4, batch_axis=0
        )
        optimisers = [Zero(stage.parameters, lambda parts: AdamW(parts, 1e-3), axis=0) for stage in model.stages]
        for step in range(5):
            losses = model.differentiate(*batch_of(step))
            for optimiser in optimisers:
                optimiser.step()
            model.zero_grad()
            found.append(model.mean_loss(losses))
        del losses, optimiser, optimisers, model

    assert furthest(found, torch_losses(5)) < 1e-5


def test_predictions_pass_through_all_stages() -> None:
    tokens, _ = batch_of(0)
    with opened((2, 4), fabric=True) as mesh, torch.no_grad():
        meshes = mesh.create_submeshes(ttnn.MeshShape(2, 2))
        model = Staged(meshes, layers(1), cross_entropy, micro_batches=2, batch_axis=0)
        composer = ttnn.ConcatMesh2dToTensor(meshes[-1], mesh_shape=(2, 2), dims=(0, 1))

        parts = [ttnn.to_torch(part, mesh_composer=composer)[:, 0] for part in model.predict(tokens)]

        torch.testing.assert_close(torch.cat(parts), TorchGPT()(tokens), rtol=1e-4, atol=1e-5)
        del model, meshes


def test_sgd_of_one_stage_leaves_the_others_alone() -> None:
    with opened((1, 2), fabric=True) as mesh:
        model = Staged(mesh.create_submeshes(ttnn.MeshShape(1, 1)), layers(), cross_entropy, micro_batches=2)
        before = {name: p.to_torch() for stage in model.stages for name, p in stage.parameters.items()}
        model.differentiate(*batch_of(0))

        SGD(model.stages[1].parameters, 0.1).step()

        changed = {
            name.split(".")[0]
            for stage in model.stages
            for name, p in stage.parameters.items()
            if not torch.equal(before[name], p.to_torch())
        }
        assert changed == {"2", "3"}
        del model
