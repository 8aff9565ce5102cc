"""What a newcomer does wrong first is told; what they write first works."""

from __future__ import annotations

import pytest
import torch
from gpt_pair import opened
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.nn.batches import pad_batch, place_rows
from ttmesh.nn.layers import Layer, Linear
from ttmesh.nn.losses import cross_entropy, loss_value, mean_squared_error
from ttmesh.nn.optimisers import SGD
from ttmesh.nn.parameters import ParameterSet
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.nn.tape import tape


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    with opened((1, 8)) as made:
        yield made


@pytest.mark.parametrize(
    ("rows", "by_hand"), [(16, False), (13, False), (16, True)], ids=["whole", "padded", "by operations"]
)
def test_regression_is_torchs(mesh, rows: int, by_hand: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y, weight = (torch.randn(*shape, generator=draw) for shape in ((rows, 32), (rows, 32), (32, 32)))
    plain = weight.clone().requires_grad_()
    torch_optimiser = torch.optim.SGD([plain], 0.1)
    layer = Linear(mesh, weight, dtype=ttnn.float32)
    parameters = layer.parameters()
    optimiser = SGD(parameters, 0.1)
    batch = pad_batch(x, y, parts=8)
    given, wanted = (place_rows(part, mesh, 1, dtype=ttnn.float32) for part in batch.tensors)
    heavy = place_rows(batch.weights, mesh, 1)

    for _ in range(4):
        expected = F.mse_loss(x @ plain, y)
        torch_optimiser.zero_grad()
        expected.backward()
        torch_optimiser.step()
        with tape() as record:
            if by_hand:
                loss = ttnn.mean(ttnn.square(ttnn.subtract(layer(given), wanted)))
            else:
                loss = mean_squared_error(layer(given), wanted, heavy)
        parameters.backward(record, loss)
        synchronize_gradients(parameters, mode="host")
        optimiser.step()
        parameters.zero_grad()

        assert loss_value(loss) == pytest.approx(expected.item(), rel=1e-5)
    del layer, parameters, optimiser, given, wanted, heavy, loss, record


def test_mistakes_are_told(mesh) -> None:
    layer = Linear(mesh, torch.zeros(32, 32), dtype=ttnn.float32)
    parameters = layer.parameters()
    x = place_rows(torch.zeros(16, 32), mesh, 1, dtype=ttnn.float32)
    with tape() as record:
        loss = ttnn.mean(layer(x))
    with tape() as empty:
        pass
    parameters.backward(record, loss)

    with pytest.raises(RuntimeError, match=r"the tape does not know how the loss was made; .* one backward per tape"):
        parameters.backward(record, loss)
    with pytest.raises(RuntimeError, match=r"Move the forward pass into the block"):
        parameters.backward(empty, loss)
    parameters.zero_grad()
    with pytest.raises(RuntimeError, match=r"no parameter has a gradient; .*parameters\.backward\(record, loss\)"):
        SGD(parameters, 0.1).step()
    with pytest.raises(
        RuntimeError, match=r"shard='column' of a linear layer; expected 'columns' .*, 'rows' .* or None"
    ):
        Linear(mesh, torch.zeros(32, 32), shard="column", axis=1)
    with pytest.raises(RuntimeError, match=r"axis 2 of a mesh of shape \[1, 8\]; expected 0 to 1"):
        Linear(mesh, torch.zeros(32, 32), shard="columns", axis=2)
    with pytest.raises(RuntimeError, match=r"a set of no parameters; .*layer\.named_parameters\(\)"):
        Layer().parameters()
    with pytest.raises(RuntimeError, match=r"targets Shape\(\[1\]\).* do not fit logits .*shard them over the chips"):
        cross_entropy(layer(x), place_rows(torch.zeros(8).int(), mesh, 1))
    with pytest.raises(RuntimeError, match=r"of DataType.FLOAT32 do not fit logits .* as integers"):
        cross_entropy(layer(x), place_rows(torch.zeros(16), mesh, 1))
    with pytest.raises(RuntimeError, match=r"do not fit predictions .*; expected equal shapes"):
        mean_squared_error(layer(x), place_rows(torch.zeros(16, 64), mesh, 1, dtype=ttnn.float32))
    with pytest.raises(RuntimeError, match=r"set_fabric_config\(FabricConfig\.FABRIC_1D\).*mode=\"host\""):
        with tape() as again:
            loss = ttnn.mean(layer(x))
        parameters.backward(again, loss)
        synchronize_gradients(ParameterSet(parameters))
    del layer, parameters, x, loss, record, empty, again
