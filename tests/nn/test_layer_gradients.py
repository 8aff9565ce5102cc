"""Gradients of every layer, of convolutions, pools, views and collectives are torch's."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpt_pair import opened
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.nn import layers
from ttmesh.nn.convolutions import Conv2d
from ttmesh.nn.layers import MLP, Attention, Embedding, Layer, LayerNorm, Linear
from ttmesh.nn.parameters import Parameter, ParameterSet, collect
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.nn.tape import tape
from ttmesh.ops.conv.conv_weights import to_matrix

PLACES = {"one chip": ((1, 1), None), "weights over 4": ((1, 4), 1), "weights over 2 of 2x2": ((2, 2), 1)}
WIDTH, HEADS, TOKENS, BATCH, VOCABULARY = 32, 4, 8, 2, 16


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest):
    shape, axis = PLACES[request.param]
    with opened(shape) as mesh:
        yield mesh, axis


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.5


def compare(
    mesh: ttnn.MeshDevice,
    parameters: dict[str, Parameter],
    forward: Callable[[], ttnn.Tensor],
    leaves: dict[str, torch.Tensor],
    expected: torch.Tensor,
) -> None:
    """Gradients of the sum of squares of what `forward` gives, against torch's."""
    expected.square().sum().backward()

    with tape() as record:
        made = forward()
        total = ttnn.sum(ttnn.multiply(made, made))
    found = record.backward(total, [p.tensor for p in parameters.values()])
    for parameter, gradient in zip(parameters.values(), found, strict=True):
        parameter.accumulate(gradient)
    synchronize_gradients(ParameterSet(parameters), mode="host")

    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        gradient = collect(parameter.grad, parameter.shard_dims)
        # float32, but sums in another order
        torch.testing.assert_close(gradient, leaves[name].grad.reshape(gradient.shape), rtol=1e-4, atol=1e-4, msg=name)
        parameter.grad = None


def check_layer(
    mesh: ttnn.MeshDevice, layer: Layer, x: Parameter, leaves: dict[str, torch.Tensor], expected: torch.Tensor
) -> None:
    compare(mesh, {**layer.named_parameters(), "x": x}, lambda: layer(x.tensor), leaves, expected)


def leaf(values: torch.Tensor) -> torch.Tensor:
    return values.clone().requires_grad_()


@pytest.mark.parametrize("cut", [None, "columns", "rows"])
def test_linear(place, cut: str | None) -> None:
    mesh, axis = place
    weight, bias, x = leaf(drawn(WIDTH, 64)), leaf(drawn(1, 64, seed=1)), leaf(drawn(BATCH, 1, TOKENS, WIDTH, seed=2))
    expected = x @ weight + bias
    layer = Linear(mesh, weight, bias, shard=cut, axis=axis, mode="host", dtype=ttnn.float32)
    x_cut = (None, 3) if cut == "rows" and axis is not None else None
    given = Parameter(x, mesh, x_cut, ttnn.float32)

    if cut == "columns" and axis is not None:
        # Each chip has some of the outputs: the sum over all of them is the sum over chips of what one has, so
        # gathering first makes the loss whole on every chip.
        compare(
            mesh, {**layer.named_parameters(), "x": given},
            lambda: ttnn.all_gather(layer(given.tensor), 3, cluster_axis=axis, mode="host"),
            {"weight": weight, "bias": bias, "x": x}, expected,
        )  # fmt: skip
    else:
        check_layer(mesh, layer, given, {"weight": weight, "bias": bias, "x": x}, expected)


def test_layer_norm(place) -> None:
    mesh, _ = place
    x, weight, bias = leaf(drawn(BATCH, 1, TOKENS, WIDTH)), leaf(torch.ones(WIDTH)), leaf(torch.zeros(WIDTH))
    expected = F.layer_norm(x, (WIDTH,), weight, bias) @ drawn(WIDTH, WIDTH)
    layer = LayerNorm(mesh, WIDTH, dtype=ttnn.float32)
    given, mixed = Parameter(x, mesh, dtype=ttnn.float32), Linear(mesh, drawn(WIDTH, WIDTH), dtype=ttnn.float32)

    compare(
        mesh, {**layer.named_parameters(), "x": given}, lambda: mixed(layer(given.tensor)),
        {"weight": weight, "bias": bias, "x": x}, expected,
    )  # fmt: skip


def test_embedding(place) -> None:
    mesh, axis = place
    table = leaf(drawn(VOCABULARY, WIDTH))
    numbers = torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    layer = Embedding(mesh, table, axis=axis, mode="host", dtype=ttnn.float32)
    tokens = ttnn.from_torch(numbers.int(), dtype=ttnn.uint32, device=mesh)

    compare(mesh, layer.named_parameters(), lambda: layer(tokens), {"table": table}, table[numbers])


def test_attention(place) -> None:
    mesh, axis = place
    qkv, out, x = leaf(drawn(WIDTH, 3 * WIDTH)), leaf(drawn(WIDTH, WIDTH, seed=1)), leaf(drawn(BATCH, TOKENS, WIDTH))
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (x @ qkv).chunk(3, -1))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2) @ out
    layer = Attention(mesh, qkv, out, HEADS, axis=axis, mode="host", dtype=ttnn.float32)
    given = Parameter(x.reshape(BATCH, 1, TOKENS, WIDTH), mesh, dtype=ttnn.float32)
    # The layer keeps columns by head, torch's by q, k and v.
    order = torch.arange(3 * WIDTH).reshape(3, HEADS, -1).transpose(0, 1).flatten()
    qkv.register_post_accumulate_grad_hook(lambda t: setattr(t, "grad", t.grad[:, order]))
    parameters = {"qkv": layer.qkv.weight, "out": layer.out.weight, "x": given}

    compare(mesh, parameters, lambda: layer(given.tensor), {"qkv": qkv, "out": out, "x": x}, expected)


@pytest.mark.parametrize(
    "activation", [(ttnn.gelu, F.gelu), (ttnn.relu, F.relu), (ttnn.silu, F.silu)], ids=["gelu", "relu", "silu"]
)
def test_mlp(place, activation) -> None:
    mesh, axis = place
    up, down, x = leaf(drawn(WIDTH, 64)), leaf(drawn(64, WIDTH, seed=1)), leaf(drawn(BATCH, 1, TOKENS, WIDTH, seed=2))
    layer = MLP(mesh, up, down, activation[0], axis=axis, mode="host", dtype=ttnn.float32)
    given = Parameter(x, mesh, dtype=ttnn.float32)

    leaves = {"up.weight": up, "down.weight": down, "x": x}
    check_layer(mesh, layer, given, leaves, activation[1](x @ up) @ down)


def test_convolution_and_pool_with_the_batch_over_chips() -> None:
    images, filters, bias = drawn(8, 3, 8, 8), leaf(drawn(4, 3, 3, 3, seed=1)), leaf(drawn(4, seed=2))
    expected = F.max_pool2d(F.conv2d(images, filters, bias, padding=1), 2)
    with opened((1, 4)) as mesh:
        layer = Conv2d(mesh, filters, bias, padding=1, dtype=ttnn.float32)
        rows = images.permute(0, 2, 3, 1).contiguous()
        x = ttnn.from_torch(rows, dtype=ttnn.float32, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0))
        expected.square().sum().backward()

        with tape() as record:
            made, size = layer(x, (2, 8, 8))
            narrow = ttnn.typecast(made, ttnn.bfloat16)  # pools take no float32
            pooled = ttnn.max_pool2d(narrow, *size, 4, [2, 2], [2, 2], [0, 0], [1, 1])
            pooled = ttnn.to_memory_config(pooled, ttnn.DRAM_MEMORY_CONFIG)  # shards of one row are not multiplied
            pooled = ttnn.typecast(pooled, ttnn.float32)
            total = ttnn.sum(ttnn.multiply(pooled, pooled))
        parameters = layer.named_parameters()
        found = record.backward(total, [p.tensor for p in parameters.values()], seed=1.0)
        for parameter, gradient in zip(parameters.values(), found, strict=True):
            parameter.accumulate(gradient)
        synchronize_gradients(ParameterSet(parameters), mode="host")

        for parameter, wanted in ((layer.weight, to_matrix(filters.grad, 1)), (layer.bias, F.pad(bias.grad, (0, 28)))):
            got = collect(parameter.grad, parameter.shard_dims)
            torch.testing.assert_close(got, wanted.reshape(got.shape), rtol=0, atol=2**-8 * wanted.abs().max().item())
        assert torch.equal(layer.filters(), filters.detach())
        del layer, x, made, narrow, pooled, total, found, gradient, parameter, parameters, record


def test_views_and_slices_pass_gradients_on() -> None:
    x = leaf(drawn(2, 32, 64))
    turned = x.reshape(1, 64, 64)[:, 32:].transpose(-1, -2)
    with opened((1, 2)) as mesh:
        given = Parameter(x, mesh, dtype=ttnn.float32)

        def forward() -> ttnn.Tensor:
            wide = ttnn.unsqueeze(ttnn.reshape(given.tensor, (64, 64)), 0)
            return ttnn.transpose(wide[:, 32:], -1, -2)

        compare(mesh, {"x": given}, forward, {"x": x}, turned)
        given.tensor.deallocate()


def test_an_operation_without_a_gradient_says_so() -> None:
    with opened((1, 2)) as mesh:
        given = Parameter(drawn(1, 1, 32, 32), mesh, dtype=ttnn.float32)
        with tape() as record:
            loss = ttnn.sum(ttnn.multiply_(ttnn.multiply(given.tensor, 2.0), 3.0))

        with pytest.raises(RuntimeError, match=r"no gradient of ttnn.multiply_: it overwrites its input"):
            record.backward(loss, [given.tensor])
        del given, loss, record


def test_every_layer_is_among_these_tests() -> None:
    here = Path(__file__).read_text()
    for _, name, _ in pkgutil.iter_modules([str(Path(layers.__file__).parent)]):
        importlib.import_module(f"ttmesh.nn.{name}")

    found = {layer.__name__ for layer in Layer.__subclasses__() if layer.__module__.startswith("ttmesh.")}

    assert found >= {"Linear", "LayerNorm", "Embedding", "Attention", "MLP", "Conv2d"}
    for name in found:
        assert re.search(rf"\b{name}\(mesh", here), f"no test makes a {name}"
