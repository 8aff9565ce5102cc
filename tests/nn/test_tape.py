"""What a tape gives for leaves used twice, views, pieces, writes in place, caches and collectives; what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from gpt_pair import opened

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.nn.losses import mean_squared_error
from ttmesh.nn.parameters import Parameter, ParameterSet, collect
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.nn.tape import tape

Forward = Callable[[ttnn.Tensor], ttnn.Tensor]


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    with opened((2, 4)) as mesh:
        yield mesh


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def on(mesh: ttnn.MeshDevice, values: torch.Tensor, **options: object) -> ttnn.Tensor:
    dtype = ttnn.float32 if values.is_floating_point() else ttnn.uint32
    return ttnn.from_torch(values, **{"dtype": dtype, "layout": ttnn.TILE_LAYOUT, "device": mesh, **options})


def lanes(tensor: ttnn.Tensor) -> torch.Tensor:
    """What each chip holds, [chips, *local]."""
    return torch.stack([ttnn.to_torch(part).float() for part in ttnn.get_device_tensors(tensor)])


def differentiate(forward: Forward, leaf: ttnn.Tensor, seed: float = 1.0) -> torch.Tensor | None:
    """Each chip's gradient of its sum of squares of what `forward` gives."""
    with tape() as record:
        made = forward(leaf)
        loss = ttnn.sum(ttnn.multiply(made, made))
    (found,) = record.backward(loss, [leaf], seed)
    return None if found is None else lanes(found)


def expect(forward: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Torch's gradient of the sum over chips; `values` and what `forward` gives are [chips, *local]."""
    leaf = values.clone().requires_grad_()
    forward(leaf).square().sum().backward()
    assert leaf.grad is not None, "the result depends on the leaf"
    return leaf.grad


ONE_CHIP: dict[str, tuple[Forward, Callable[[torch.Tensor], torch.Tensor]]] = {
    "twice": (lambda x: ttnn.add(ttnn.exp(x), ttnn.multiply(x, x)), lambda x: x.exp() + x * x),
    "with itself": (lambda x: ttnn.matmul(x, x, transpose_b=True), lambda x: x @ x.mT),
    "as a view and itself": (
        lambda x: ttnn.add(ttnn.reshape(x, (1, 64, 32)), ttnn.reshape(ttnn.sin(x), (1, 64, 32))),
        lambda x: (x + x.sin()).reshape(-1, 1, 64, 32),
    ),
    "in pieces": (
        lambda x: ttnn.concat([x[:, :, :32], ttnn.multiply(x[:, :, 32:], 3.0), x[:, :, :32]], dim=-1),
        lambda x: torch.cat([x[..., :32], x[..., 32:] * 3, x[..., :32]], -1),
    ),
    "padded and permuted": (
        lambda x: ttnn.permute(ttnn.pad(x, [(0, 0), (0, 32), (0, 0)], 2.0), (2, 0, 1)),
        lambda x: torch.nn.functional.pad(x, (0, 0, 0, 32), value=2.0).permute(0, 3, 1, 2),
    ),
    "in other layouts and memories": (
        lambda x: ttnn.to_memory_config(ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), ttnn.L1_MEMORY_CONFIG),
        lambda x: x,
    ),
    "reallocated and moved": (lambda x: ttnn.move(ttnn.reallocate(ttnn.exp(x))), lambda x: x.exp()),
    "masked by a comparison": (lambda x: ttnn.multiply(x, ttnn.gt(x, 0.3)), lambda x: x * (x > 0.3)),
    "chosen by a comparison": (
        lambda x: ttnn.where(ttnn.lt(x, 0.3), ttnn.exp(x), ttnn.multiply(x, 2.0)),
        lambda x: torch.where(x < 0.3, x.exp(), x * 2),
    ),
    "divided by its size": (
        lambda x: ttnn.div(x, ttnn.sqrt(ttnn.sum(ttnn.multiply(x, x), dim=-1, keepdim=True))),
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
    ),
    "rounded and signed": (
        lambda x: ttnn.add(ttnn.multiply(x, ttnn.sign(x)), ttnn.floor(x)),
        lambda x: x * x.sign() + x.floor(),
    ),
    "many zeros": (
        lambda x: ttnn.add(ttnn.prelu(ttnn.relu(x), 0.3), ttnn.std(ttnn.relu(x), dim=-1, keepdim=True, correction=False)),
        lambda x: torch.nn.functional.prelu(x.relu(), torch.tensor([0.3]))
        + torch.std(x.relu(), -1, keepdim=True, correction=0),
    ),
    "through integers": (
        lambda x: ttnn.add(x, ttnn.typecast(ttnn.typecast(x, ttnn.int32), ttnn.float32)),
        lambda x: x + x.int(),
    ),
    "added to in place": (lambda x: ttnn.add_(ttnn.exp(x), x), lambda x: x.exp() + x),
    "copied into another": (
        lambda x: (ttnn.copy(ttnn.exp(x), out := ttnn.zeros_like(x)) and out) or out,
        lambda x: x.exp(),
    ),
    "into a given tensor": (
        lambda x: ttnn.multiply(x, ttnn.exp(x), output_tensor=ttnn.zeros_like(x)), lambda x: x * x.exp()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_CHIP)
def test_the_gradient_of_a_leaf_used(name: str, mesh: ttnn.MeshDevice) -> None:
    forward, golden = ONE_CHIP[name]
    values = drawn(8, 32, 64) * 0.5
    leaf = on(mesh, values, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0))

    found = differentiate(forward, leaf)

    torch.testing.assert_close(found, expect(golden, values.unsqueeze(1)), rtol=1e-4, atol=1e-4)


def test_a_cache_passes_gradients_to_the_rows_that_were_written(mesh: ttnn.MeshDevice) -> None:
    rows, old = drawn(1, 2, 32, 64), drawn(2, 2, 128, 64, seed=1)
    cache, given = on(mesh, old), on(mesh, rows)

    with tape() as record:
        kept = ttnn.multiply(cache, 2.0)
        ttnn.fill_cache(kept, ttnn.exp(given), 1)
        loss = ttnn.sum(ttnn.multiply(kept, kept))
    found = [lanes(g)[0] for g in record.backward(loss, [given, cache], 1.0) if g is not None]

    want_cache = 8 * old
    want_cache[1, :, :32] = 0
    torch.testing.assert_close(found[0], 2 * (2 * rows).exp(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], want_cache)


def members(x: torch.Tensor, axis: int) -> torch.Tensor:
    """[chips, *local] → [groups, members, *local] of a 2x4 mesh."""
    grid = x.unflatten(0, (2, 4))
    return grid.transpose(0, 1) if axis == 0 else grid


def chips(grouped: torch.Tensor, axis: int) -> torch.Tensor:
    return (grouped.transpose(0, 1) if axis == 0 else grouped).flatten(0, 1)


def over(function: Callable[[torch.Tensor, int], torch.Tensor]) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """A function of one group's members, [members, *local], for all groups of an axis."""
    return lambda x, axis: chips(torch.stack([function(group, len(group)) for group in members(x, axis)]), axis)


def gathered(group: torch.Tensor, n: int) -> torch.Tensor:
    return torch.cat([*group], -2).expand(n, *[-1] * (group.dim() - 1))


def summed(group: torch.Tensor, n: int) -> torch.Tensor:
    return group.sum(0, keepdim=True).expand_as(group)


def scattered(group: torch.Tensor, n: int) -> torch.Tensor:
    return torch.stack(group.sum(0).chunk(n, -2))


def exchanged(group: torch.Tensor, n: int) -> torch.Tensor:
    return torch.stack([torch.cat([part.chunk(n, -1)[i] for part in group], -2) for i in range(n)])


def partitioned(group: torch.Tensor, n: int) -> torch.Tensor:
    return torch.stack([part.chunk(n, -2)[i] for i, part in enumerate(group)])


COLLECTIVES: dict[str, tuple[Callable[..., ttnn.Tensor], Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "all_gather": (lambda x, a: ttnn.all_gather(x, 2, cluster_axis=a, mode="host"), over(gathered)),
    "ttmesh.all_gather": (lambda x, a: ttmesh.all_gather(x, 2, cluster_axis=a, mode="host"), over(gathered)),
    "all_gather into a tensor": (
        lambda x, a: ttnn.all_gather(
            x, 2, cluster_axis=a, mode="host", output_tensor=ttnn.concat([x] * (2, 4)[a], dim=2)
        ),
        over(gathered),
    ),
    "all_reduce": (lambda x, a: ttnn.all_reduce(x, cluster_axis=a, mode="host"), over(summed)),
    "all_reduce of means": (
        lambda x, a: ttnn.all_reduce(x, cluster_axis=a, mode="host", reduction="mean"),
        over(lambda group, n: summed(group, n) / n),
    ),
    "reduce_scatter": (lambda x, a: ttnn.reduce_scatter(x, 2, cluster_axis=a, mode="host"), over(scattered)),
    "reduce_scatter of means": (
        lambda x, a: ttnn.reduce_scatter(x, 2, cluster_axis=a, mode="host", reduction="mean"),
        over(lambda group, n: scattered(group, n) / n),
    ),
    "all_to_all": (lambda x, a: ttmesh.all_to_all(x, 2, 3, cluster_axis=a, mode="host"), over(exchanged)),
    "mesh_partition": (lambda x, a: ttnn.mesh_partition(x, 2, cluster_axis=a), over(partitioned)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_gradient_of_a_collective(name: str, axis: int, mesh: ttnn.MeshDevice) -> None:
    collective, golden = COLLECTIVES[name]
    values = drawn(8, 1, 128, 128) * 0.3
    weight = drawn(*golden(values, axis).shape, seed=1)  # another loss on each chip
    leaf = on(mesh, values, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0))
    factor = on(mesh, weight, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0))

    found = differentiate(lambda x: ttnn.multiply(collective(ttnn.sin(x), axis), factor), leaf)

    want = expect(lambda x: golden(x.sin(), axis) * weight, values)
    torch.testing.assert_close(found.squeeze(1), want, rtol=1e-4, atol=1e-4)


def test_a_replicated_leaf_has_parts_of_a_sum_that_synchronising_adds_up(mesh: ttnn.MeshDevice) -> None:
    weight, x, y = drawn(64, 32), drawn(16, 1, 32, 64, seed=1), drawn(16, 1, 32, 32, seed=2)
    torch_weight = weight.clone().requires_grad_()
    torch.nn.functional.mse_loss(x @ torch_weight, y).backward()
    parameters = ParameterSet({"w": Parameter(weight, mesh, dtype=ttnn.float32)})
    rows = {"mesh_mapper": ttnn.ShardTensorToMesh(mesh, 0)}

    with tape() as record:
        loss = mean_squared_error(ttnn.matmul(on(mesh, x, **rows), parameters["w"].tensor), on(mesh, y, **rows))
    parameters.backward(record, loss)
    part = lanes(parameters["w"].grad)
    synchronize_gradients(parameters, mode="host")

    assert not torch.equal(part[0], part[1])
    torch.testing.assert_close(part.sum(0), torch_weight.grad)
    torch.testing.assert_close(collect(parameters["w"].grad, (None, None)), torch_weight.grad)


def test_comparisons_alone_give_no_gradient_as_in_torch(mesh: ttnn.MeshDevice) -> None:
    assert differentiate(lambda x: ttnn.gt(x, 0.0), on(mesh, drawn(32, 32))) is None


def written_by_an_operation(x: ttnn.Tensor) -> ttnn.Tensor:
    held = ttnn.exp(x)
    made = ttnn.multiply(held, held)
    ttnn.multiply(held, 2.0, output_tensor=held)
    return made


def written_from_the_host(x: ttnn.Tensor) -> ttnn.Tensor:
    held = ttnn.exp(x)
    made = ttnn.multiply(held, held)
    ttnn.copy_host_to_device_tensor(ttnn.zeros_like(x).cpu(), held)
    return made


def written_by_a_collective(x: ttnn.Tensor) -> ttnn.Tensor:
    held = ttnn.concat([ttnn.exp(x)] * 4, dim=-1)
    made = ttnn.multiply(held, held)
    ttnn.all_gather(x, 1, cluster_axis=1, mode="host", output_tensor=held)
    return made


def freed(x: ttnn.Tensor) -> ttnn.Tensor:
    held = ttnn.exp(x)
    made = ttnn.multiply(held, held)
    ttnn.deallocate(held)
    return made


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (written_by_an_operation, r"an input \[32, 32\] of ttnn.multiply was overwritten before backward"),
        (written_from_the_host, r"an input \[32, 32\] of ttnn.multiply was overwritten before backward"),
        (written_by_a_collective, r"an input \[32, 128\] of ttnn.multiply was overwritten before backward"),
        (freed, r"an input \[32, 32\] of ttnn.multiply was freed before backward"),
        (lambda x: ttnn.multiply_(ttnn.exp(x), x), r"no gradient of ttnn.multiply_: it overwrites its input"),
        (lambda x: ttnn.all_reduce(ttnn.exp(x), cluster_axis=1, mode="host", reduction="max"), "takes the max over"),
        (lambda x: ttnn.broadcast(ttnn.exp(x), ttnn.MeshCoordinate(0, 0), cluster_axis=1, mode="host"),
         "no gradient of ttnn.broadcast: it has no rule"),
        (lambda x: ttnn.heaviside(ttnn.exp(x), 0.5), "no gradient of ttnn.heaviside: its result is not differentiable"),
    ],
)  # fmt: skip
def test_a_step_back_that_would_be_wrong_is_refused(forward: Forward, text: str, mesh: ttnn.MeshDevice) -> None:
    with pytest.raises(RuntimeError, match=text):
        differentiate(forward, on(mesh, drawn(32, 32)))


def test_what_a_write_replaced_gets_no_gradient_of_what_came_after(mesh: ttnn.MeshDevice) -> None:
    def forward(x: ttnn.Tensor) -> ttnn.Tensor:
        held = ttnn.add(x, 1.0)
        first = ttnn.add(held, 0.0)
        ttnn.copy_host_to_device_tensor(ttnn.ones_like(x).cpu(), held)
        return ttnn.add(first, ttnn.multiply(held, 5.0))

    values = drawn(32, 32)

    found = differentiate(forward, on(mesh, values))

    torch.testing.assert_close(found[0], 2 * (values + 6))


def test_an_update_between_forward_and_backward_is_refused(mesh: ttnn.MeshDevice) -> None:
    leaf = on(mesh, drawn(32, 32))
    with tape() as record:
        loss = ttnn.sum(ttnn.multiply(leaf, leaf))
    ttnn.multiply(leaf, 0.5, output_tensor=leaf)

    with pytest.raises(RuntimeError, match="was overwritten before backward"):
        record.backward(loss, [leaf])


def test_targets_that_change_before_backward_are_refused(mesh: ttnn.MeshDevice) -> None:
    leaf, targets = on(mesh, drawn(32, 32)), on(mesh, drawn(32, 32, seed=1))
    with tape() as record:
        loss = mean_squared_error(leaf, targets)
    ttnn.copy_host_to_device_tensor(ttnn.zeros_like(leaf).cpu(), targets)

    with pytest.raises(RuntimeError, match="mean_squared_error was overwritten before backward"):
        record.backward(loss, [leaf])


def test_a_write_on_one_chip_is_refused(mesh: ttnn.MeshDevice) -> None:
    def forward(x: ttnn.Tensor) -> ttnn.Tensor:
        held = ttnn.exp(x)
        ttnn.copy(ttnn.get_device_tensors(ttnn.sin(x))[1], ttnn.get_device_tensors(held)[1])
        return held

    with pytest.raises(
        RuntimeError, match="a tensor was written on some of its chips only: gradients of 8 and 1 chips"
    ):
        differentiate(forward, on(mesh, drawn(32, 32)))


def test_one_chips_tensor_gives_that_chips_gradient(mesh: ttnn.MeshDevice) -> None:
    leaf = on(mesh, drawn(32, 32))
    with tape() as record:
        part = ttnn.get_device_tensors(ttnn.exp(leaf))[3]
        loss = ttnn.sum(ttnn.multiply(part, part))

    (found,) = record.backward(loss, [leaf], 1.0)

    assert [tuple(c) for c in found.coords()] == [(0, 3)]
    torch.testing.assert_close(lanes(found)[0], 2 * (2 * drawn(32, 32)).exp())


BATCHES = [(), (1,), (2,), (1, 1), (2, 1), (1, 3), (2, 3)]


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_of_all_batches_have_torchs_gradients(
    transpose_a: bool, transpose_b: bool, mesh: ttnn.MeshDevice
) -> None:
    for one in BATCHES:
        for other in BATCHES:
            a = drawn(*one, *((20, 9) if transpose_a else (9, 20)))
            b = drawn(*other, *((12, 20) if transpose_b else (20, 12)), seed=1)
            try:
                leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
                made = (leaves[0].mT if transpose_a else leaves[0]) @ (leaves[1].mT if transpose_b else leaves[1])
                given = on(mesh, a), on(mesh, b)
                with tape() as record:
                    product = ttnn.matmul(*given, transpose_a=transpose_a, transpose_b=transpose_b)
                    loss = ttnn.sum(ttnn.multiply(product, product))
            except RuntimeError:
                continue  # batches that torch or TT-NN does not multiply

            made.square().sum().backward()
            for leaf, gradient in zip(leaves, record.backward(loss, given, 1.0), strict=True):
                torch.testing.assert_close(lanes(gradient)[0], leaf.grad, rtol=1e-4, atol=1e-3, msg=f"{one} @ {other}")
