"""Batches that chips do not divide: padding that counts nothing, in training and behind pipelines."""

from __future__ import annotations

import pytest
import torch
from gpt_pair import opened
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.nn.batches import batches, pad_batch, place_rows
from ttmesh.nn.layers import Linear
from ttmesh.nn.losses import cross_entropy
from ttmesh.nn.parameters import ParameterSet, collect
from ttmesh.nn.pipelines import PipelineConfig, create_pipeline_from_config
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.nn.tape import tape


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")


@pytest.mark.parametrize("rows", [1, 3, 8, 13])
@pytest.mark.parametrize("tokens", [1, 5])
def test_gradients_of_a_padded_batch_are_torchs_of_the_real_rows(rows: int, tokens: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 1, tokens, 16, generator=draw), torch.randn(16, 32, generator=draw)
    targets = torch.randint(0, 32, (rows, 1, tokens), generator=draw)
    plain = weight.clone().requires_grad_()
    expected = F.cross_entropy((x @ plain).flatten(0, 2), targets.flatten())
    expected.backward()

    with opened((1, 8)) as mesh:
        layer = Linear(mesh, weight, dtype=ttnn.float32)
        parameters = ParameterSet(layer.named_parameters())
        batch = pad_batch(x, targets, parts=8)
        given, wanted = (
            place_rows(part, mesh, 1, dtype=kind)
            for part, kind in zip(batch.tensors, (ttnn.float32, None), strict=True)
        )
        with tape() as record:
            loss = cross_entropy(layer(given), wanted, place_rows(batch.weights, mesh, 1))
        parameters["weight"].accumulate(record.backward(loss, [layer.weight.tensor])[0])
        synchronize_gradients(parameters, mode="host")
        value = ttnn.to_torch(loss, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0)).mean()
        gradient = collect(parameters["weight"].grad, layer.weight.shard_dims)
        del layer, parameters, given, wanted, loss, record

    torch.testing.assert_close(value, expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, plain.grad, rtol=1e-5, atol=1e-7)


def test_batches_are_whole_but_the_last_one() -> None:
    values = torch.arange(21)

    found = list(batches(values, values * 2, size=8, parts=4))

    assert [batch.count for batch in found] == [8, 8, 5]
    assert [len(batch.weights) for batch in found] == [8, 8, 8]
    assert torch.equal(torch.cat([batch.unpad(batch.tensors[0]) for batch in found]), values)
    assert found[-1].tensors[1].tolist() == [32, 34, 36, 38, 40, 40, 40, 40]
    assert found[-1].weights.tolist() == [1.600000023841858] * 5 + [0.0] * 3
    assert all(batch.weights.mean() == pytest.approx(1.0) for batch in found)


def test_a_pipeline_serves_a_batch_that_chips_do_not_divide() -> None:
    images = torch.randn(21, 1, 32, 32).bfloat16()
    with opened((1, 4), num_command_queues=2, trace_region_size=200_000) as mesh:
        parts = list(batches(images, size=8, parts=4))
        inputs = [place_rows(part.tensors[0], mesh, 1, on_host=True) for part in parts]
        pipeline = create_pipeline_from_config(
            PipelineConfig(True, 2, True), lambda x: ttnn.add(x, x), mesh, ttnn.L1_MEMORY_CONFIG,
            ttnn.DRAM_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG,
        )  # fmt: skip
        composer = ttnn.ConcatMeshToTensor(mesh, dim=0)

        results = pipeline.compile(inputs[0]).enqueue(inputs).pop_all()
        whole = torch.cat(
            [part.unpad(ttnn.to_torch(r, mesh_composer=composer)) for part, r in zip(parts, results, strict=True)]
        )

        assert torch.equal(whole, images + images)
        pipeline.cleanup()
        del pipeline, results


def test_what_cannot_be_padded_or_cut_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"tensors with \[3, 4\] rows; expected the same number"):
        pad_batch(torch.zeros(3), torch.zeros(4), parts=2)
    with pytest.raises(RuntimeError, match=r"tensors with \[0\] rows"):
        pad_batch(torch.zeros(0, 3), parts=2)
    with pytest.raises(RuntimeError, match="a batch for 0 parts"):
        pad_batch(torch.zeros(3), parts=0)
    with pytest.raises(RuntimeError, match="batches of 0 rows"):
        next(batches(torch.zeros(3), size=0, parts=1))
    with opened((1, 8)) as mesh:
        with pytest.raises(RuntimeError, match=r"6 rows cannot be sharded over 8 chips; .* pad_batch\(..., parts=8\)"):
            place_rows(torch.zeros(6, 2), mesh, 1)
        logits, targets, weights = (
            place_rows(v, mesh, 1) for v in (torch.zeros(8, 3, 32), torch.zeros(8, 3).int(), torch.ones(16))
        )
        with pytest.raises(RuntimeError, match=r"weights .* do not fit targets"):
            cross_entropy(logits, targets, weights)
        del logits, targets, weights
