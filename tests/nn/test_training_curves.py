"""Loss curves on meshes are those of plain torch, whatever is cut along which axis."""

from __future__ import annotations

import pytest
import torch
from gpt_pair import PLACEMENTS, Trainer, batch_of, opened, torch_losses

import ttmesh.ttnn as ttnn
from ttmesh.nn.optimisers import SGD, AdamW
from ttmesh.nn.synchronise import clip_gradients, synchronize_gradients
from ttmesh.nn.zero import Zero


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    yield
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def losses(
    placement: str, steps: int, *, dtype: ttnn.DataType = ttnn.float32, mode: str = "host", clip: float | None = None
) -> list[float]:
    with opened(PLACEMENTS[placement][0]) as mesh:
        trainer = Trainer(mesh, placement, dtype, mode)
        optimiser = AdamW(trainer.parameters, 1e-3)
        curve = []
        for step in range(steps):
            trainer.feed(step)
            loss = trainer.differentiate()
            synchronize_gradients(trainer.parameters, mode=mode)
            if clip is not None:
                clip_gradients(trainer.parameters, clip, mode=mode)
            optimiser.step()
            trainer.parameters.zero_grad()
            curve.append(trainer.mean(loss))
        del loss, optimiser, trainer
        return curve


def furthest(curve: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(curve, expected, strict=True))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_float32_curves_are_torchs(placement: str) -> None:
    expected = torch_losses(50)

    curve = losses(placement, 50)

    assert furthest(curve[:10], expected[:10]) < 1e-5
    assert abs(curve[-1] - expected[-1]) / expected[-1] < 1e-3


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_bfloat16_curves_stay_within_one_percent_of_torchs_float32(placement: str) -> None:
    # bfloat16 keeps 8 bits (0.4 %) per rounding; master weights are float32, so that errors do not pile up.
    assert furthest(losses(placement, 20, dtype=ttnn.bfloat16), torch_losses(20)) < 1e-2


@pytest.mark.parametrize("placement", ["data parallel", "hybrid"])
def test_links_and_the_host_sum_the_same_gradients(placement: str) -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)

    over_links = losses(placement, 5, mode="fabric")

    assert furthest(over_links, losses(placement, 5, mode="host")) < 1e-5


@pytest.mark.parametrize("placement", ["one chip", "hybrid"])
def test_clipping_is_torchs(placement: str) -> None:
    expected = torch_losses(10, clip=0.05)
    assert furthest(expected, torch_losses(10)) > 1e-5  # it does clip

    assert furthest(losses(placement, 10, clip=0.05), expected) < 1e-5


@pytest.mark.parametrize("placement", ["one chip", "hybrid"])
def test_accumulated_halves_are_the_whole_batch(placement: str) -> None:
    shape, batch_axis, _ = PLACEMENTS[placement]
    with opened(shape) as mesh:
        whole, halves = (Trainer(mesh, placement) for _ in range(2))
        whole.differentiate()
        parts = [part.reshape(2, -1, *part.shape[1:]) for part in batch_of(0)]
        for half in range(2):
            halves.differentiate(*(halves._host(part[half].contiguous()).to(mesh) for part in parts))

        for name, parameter in whole.parameters.items():
            one = parameter.grad
            two = ttnn.multiply(halves.parameters[name].grad, 0.5)
            # Each half is cut over the chips of the batch axis: only the sum over them is the same.
            gathered = [
                sum(ttnn.to_torch(t) for t in ttnn.get_device_tensors(grad)[:: 4 if batch_axis == 0 else 1][:2])
                for grad in (one, two)
            ]
            torch.testing.assert_close(gathered[0], gathered[1], rtol=1e-4, atol=1e-7)
        del one, two, parameter, whole, halves


@pytest.mark.parametrize("placement", ["data parallel", "hybrid"])
def test_optimiser_state_cut_over_the_batch_axis_gives_the_same_run_in_less_memory(placement: str) -> None:
    shape, axis, _ = PLACEMENTS[placement]
    curves, weights, used = {}, {}, {}
    for kind in ("whole", "cut"):
        with opened(shape) as mesh:
            trainer = Trainer(mesh, placement)
            before = _allocated(mesh)
            if kind == "whole":
                optimiser = AdamW(trainer.parameters, 1e-3)
            else:
                optimiser = Zero(trainer.parameters, lambda parts: AdamW(parts, 1e-3), axis=axis, mode="host")
            used[kind] = _allocated(mesh) - before
            curves[kind] = []
            for step in range(5):
                trainer.feed(step)
                loss = trainer.differentiate()
                if kind == "whole":
                    synchronize_gradients(trainer.parameters, mode="host")
                optimiser.step()
                trainer.parameters.zero_grad()
                curves[kind].append(trainer.mean(loss))
            weights[kind] = trainer.weights()
            del loss, trainer, optimiser

    assert furthest(curves["cut"], curves["whole"]) < 1e-6
    for name, values in weights["whole"].items():
        torch.testing.assert_close(weights["cut"][name], values, rtol=1e-5, atol=1e-6)
    assert used["cut"] < used["whole"] / 1.3  # float32 weights: master copies are extra where the state is cut


def test_masters_of_bfloat16_weights_are_cut_too() -> None:
    used = {}
    for kind in ("whole", "cut"):
        with opened((1, 8)) as mesh:
            trainer = Trainer(mesh, "data parallel", ttnn.bfloat16)
            before = _allocated(mesh)
            if kind == "whole":
                optimiser = AdamW(trainer.parameters, 1e-3)
            else:
                optimiser = Zero(trainer.parameters, lambda parts: AdamW(parts, 1e-3), axis=1, mode="host")
            used[kind] = _allocated(mesh) - before
            del trainer, optimiser

    assert used["cut"] < used["whole"] / 3


def test_zero_refuses_parameters_that_the_axis_already_cuts() -> None:
    with opened((2, 4)) as mesh:
        trainer = Trainer(mesh, "hybrid")

        with pytest.raises(RuntimeError, match="is sharded along mesh axis 1; expected parameters that are replicated"):
            Zero(trainer.parameters, lambda parts: AdamW(parts), axis=1)
        del trainer


def test_a_whole_step_replayed_as_a_trace_is_the_eager_step() -> None:
    curves, weights = {}, {}
    for kind in ("eager", "traced"):
        with opened((2, 4), trace_region_size=8_000_000) as mesh:
            trainer = Trainer(mesh, "hybrid")
            optimiser = AdamW(trainer.parameters, 1e-3)

            def step(trainer=trainer, optimiser=optimiser) -> ttnn.Tensor:
                loss = trainer.differentiate()
                synchronize_gradients(trainer.parameters, mode="host")
                clip_gradients(trainer.parameters, 0.5, mode="host")
                optimiser.step()
                trainer.parameters.zero_grad()
                return loss

            trainer.feed(0)
            curve = [trainer.mean(step())]
            if kind == "traced":
                trace = ttnn.begin_trace_capture(mesh, cq_id=0)
                kept = step()
                ttnn.end_trace_capture(mesh, trace, cq_id=0)
            for number in range(1, 6):
                trainer.feed(number)
                if kind == "traced":
                    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
                else:
                    kept = step()
                curve.append(trainer.mean(kept))
            curves[kind], weights[kind] = curve, trainer.weights()
            if kind == "traced":
                ttnn.release_trace(mesh, trace)
            del kept, trainer, optimiser, step

    assert curves["traced"] == curves["eager"]
    for name, values in weights["eager"].items():
        assert torch.equal(weights["traced"][name], values)


def test_learning_rates_change_between_steps() -> None:
    with opened((1, 1)) as mesh:
        trainer = Trainer(mesh, "one chip")
        optimiser = SGD(trainer.parameters, 0.1, momentum=0.9)
        before = trainer.weights()
        optimiser.set_lr(0.0)

        trainer.differentiate()
        optimiser.step()

        assert all(torch.equal(before[name], values) for name, values in trainer.weights().items())
        del trainer, optimiser


def _allocated(mesh: ttnn.MeshDevice) -> int:
    view = ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM)
    return view.num_banks * view.total_bytes_allocated_per_bank
