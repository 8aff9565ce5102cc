"""Sums of gradients that leave during `backward` give the same run, and really run at the same time."""

from __future__ import annotations

import threading

import pytest
import torch
from gpt_pair import PLACEMENTS, Trainer, opened

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.records import Finished
from ttmesh.base.signals import signals
from ttmesh.nn.layers import Linear
from ttmesh.nn.losses import cross_entropy
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.overlap import OverlappedSums
from ttmesh.nn.parameters import ParameterSet
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.nn.tape import tape

LAYERS, GUARD_S = 6, 300.0


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    yield
    settings.override("TTMESH_SCHEDULE", None)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def divide_cores(mesh: ttnn.MeshDevice) -> None:
    """Seven rows of cores compute, one row sums."""
    parts = [
        ttnn.SubDevice([ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, top), ttnn.CoreCoord(7, bottom))])])
        for top, bottom in ((0, 6), (7, 7))
    ]
    mesh.load_sub_device_manager(mesh.create_sub_device_manager(parts, 0))


def curve(placement: str, steps: int, bucket_bytes: int | None) -> tuple[list[float], dict[str, torch.Tensor]]:
    with opened(PLACEMENTS[placement][0], fabric=True, num_command_queues=2) as mesh:
        divide_cores(mesh)
        trainer = Trainer(mesh, placement, mode="fabric")
        optimiser = AdamW(trainer.parameters, 1e-3)
        sums = None if bucket_bytes is None else OverlappedSums(trainer.parameters, bucket_bytes=bucket_bytes)
        found = []
        for step in range(steps):
            trainer.feed(step)
            if sums is None:
                loss = trainer.differentiate()
                synchronize_gradients(trainer.parameters)
            else:
                with tape() as record:
                    loss = cross_entropy(trainer.model(trainer.tokens), trainer.targets)
                sums.backward(record, loss)
            optimiser.step()
            trainer.parameters.zero_grad()
            found.append(trainer.mean(loss))
        weights = trainer.weights()
        del loss, optimiser, trainer, sums
    return found, weights


@pytest.mark.parametrize("schedule", ["eager", "async", "adversarial"])
@pytest.mark.parametrize("placement", ["data parallel", "hybrid"])
@pytest.mark.parametrize("bucket_bytes", [0, 20_000, 2**30])
def test_overlapped_sums_give_the_same_run(placement: str, bucket_bytes: int, schedule: str) -> None:
    expected, weights = curve(placement, 3, None)
    ttmesh.configure(schedule=schedule)

    found, made = curve(placement, 3, bucket_bytes)

    assert found == pytest.approx(expected, rel=1e-6)  # collectives of other lengths add in another order
    for name, values in weights.items():
        torch.testing.assert_close(made[name], values, rtol=1e-5, atol=1e-6)


class FirstSum:
    """Hears what the queues finish, and keeps the first sum under way until the other queue has made every gradient."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.found: list[Finished] = []
        self.met: list[bool] = []

    def hear(self, record: object) -> None:
        """Take a record, on the thread of its queue: while this waits, that queue does."""
        if not isinstance(record, Finished):
            return
        with self._news:
            self.found.append(record)
            self._news.notify_all()
            if (record.queue, record.name) == (1, "ttnn.all_reduce") and not self.met:
                self.met.append(self._news.wait_for(lambda: self.count(0, "ttmesh.weight_grad") == LAYERS, GUARD_S))

    def count(self, queue: int, name: str) -> int:
        """How often something has run."""
        return sum((record.queue, record.name) == (queue, name) for record in self.found)


def test_sums_run_while_backward_does() -> None:
    ttmesh.configure(schedule="async")
    with opened((1, 8), fabric=True, num_command_queues=2) as mesh:
        divide_cores(mesh)
        draw = torch.Generator().manual_seed(0)
        layers = [Linear(mesh, torch.randn(64, 64, generator=draw) * 0.1, dtype=ttnn.float32) for _ in range(LAYERS)]
        named = {f"{i}.weight": layer.weight for i, layer in enumerate(layers)}
        sums = OverlappedSums(ParameterSet(named), bucket_bytes=64 * 64 * 4)
        mapper = ttnn.ShardTensorToMesh(mesh, dim=0)
        x = ttnn.from_torch(
            torch.randn(256, 64, generator=draw),
            dtype=ttnn.float32,
            layout=ttnn.TILE_LAYOUT,
            device=mesh,
            mesh_mapper=mapper,
        )
        y = ttnn.from_torch(torch.zeros(256).int(), dtype=ttnn.uint32, device=mesh, mesh_mapper=mapper)
        first_sum = FirstSum()
        stop = signals.listen(first_sum.hear, commands=True)
        with tape() as record:
            made = x
            for layer in layers:
                made = layer(made)
            loss = cross_entropy(made, y)
        sums.backward(record, loss)
        ttnn.synchronize_device(mesh)
        stop()
        del x, y, made, loss, layer, layers, named, sums, record

    assert first_sum.met == [True]  # the last layer's sum lasted until the first layer's gradient was made
    assert first_sum.count(1, "ttnn.all_reduce") == LAYERS


def test_accumulated_gradients_are_summed_once() -> None:
    with opened((1, 8), fabric=True, num_command_queues=2) as mesh:
        divide_cores(mesh)
        plain, overlapped = (Trainer(mesh, "data parallel", mode="fabric") for _ in range(2))
        sums = OverlappedSums(overlapped.parameters)
        for trainer in (plain, overlapped):
            trainer.differentiate()  # an earlier part of the batch, not summed yet
            trainer.feed(1)
        plain.differentiate()
        synchronize_gradients(plain.parameters)
        with tape() as record:
            loss = cross_entropy(overlapped.model(overlapped.tokens), overlapped.targets)

        sums.backward(record, loss)

        for name, parameter in plain.parameters.items():
            one, two = (
                ttnn.to_torch(ttnn.get_device_tensors(p.grad)[3]) for p in (parameter, overlapped.parameters[name])
            )
            torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-7)
        del plain, overlapped, sums, trainer, loss, parameter, record


def test_what_is_missing_is_told() -> None:
    with opened((1, 2), fabric=True) as mesh:
        parameters = Trainer(mesh, "data parallel").parameters
        with pytest.raises(RuntimeError, match=r"has one command queue; .* num_command_queues=2"):
            OverlappedSums(parameters)
        del parameters
    with opened((1, 2), fabric=True, num_command_queues=2) as mesh:
        parameters = Trainer(mesh, "data parallel").parameters
        with pytest.raises(RuntimeError, match=r"one sub-device, .*load_sub_device_manager"):
            OverlappedSums(parameters)
        del parameters


def test_every_gradient_is_told_once_and_complete() -> None:
    told: list[tuple[int, torch.Tensor]] = []
    with opened((1, 1), fabric=True) as mesh:
        trainer = Trainer(mesh, "one chip")
        tensors = [p.tensor for p in trainer.parameters.values()]
        with tape() as record:
            loss = cross_entropy(trainer.model(trainer.tokens), trainer.targets)

        gradients = record.backward(loss, tensors, None, lambda place, grad: told.append((place, ttnn.to_torch(grad))))

        assert sorted(place for place, _ in told) == list(range(len(tensors)))
        assert all(torch.equal(values, ttnn.to_torch(gradients[place])) for place, values in told)
        del trainer, tensors, loss, gradients, record
