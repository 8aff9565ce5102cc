"""all_to_all_dispatch and all_to_all_combine refuse what TT-NN refuses, in its words, and never end in torch's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ccl_meshes import opened

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError

DEVICES, EXPERTS, TOKENS, K, HIDDEN = 4, 8, 8, 2, 32
ROWS, SHARDED = ttnn.ROW_MAJOR_LAYOUT, ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG


@pytest.fixture
def mesh() -> Iterator[Any]:
    with opened((1, DEVICES)) as mesh:
        yield mesh


def put(mesh: Any, values: torch.Tensor, dtype: Any = ttnn.uint16, layout: Any = ROWS) -> Any:
    return ttnn.from_torch(values, dtype=dtype, layout=layout, device=mesh)


def floats(mesh: Any, *shape: int) -> Any:
    return put(mesh, torch.ones(shape), ttnn.bfloat16)


def ints(mesh: Any, *shape: int) -> Any:
    return put(mesh, torch.ones(shape).int())


def table(mesh: Any, experts: int = EXPERTS, dtype: Any = ttnn.uint16, layout: Any = ROWS) -> Any:
    return put(
        mesh, (torch.arange(experts) % DEVICES == torch.arange(DEVICES)[:, None]).T[None, None].int(), dtype, layout
    )


def dispatch(x: Any, indices: Any, mapping: Any, **more: Any) -> Any:
    return ttnn.all_to_all_dispatch(x, indices, mapping, cluster_axis=1, **more)


def combine(x: Any, metadata: Any, mapping: Any, **more: Any) -> Any:
    return ttnn.all_to_all_combine(x, metadata, mapping, **{"cluster_axis": 1, **more})


def results(mesh: Any, experts: int = EXPERTS // DEVICES) -> Any:
    return floats(mesh, experts, TOKENS, 1, HIDDEN)


Call = Callable[[Any], Any]
# The texts are those of TT-NN 0.81.1 on a t3000 of 1x8.
REFUSED: list[tuple[str, Call]] = [
    (
        "must have the same shape for all dimensions except the last. Mismatch at dimension 0 with shape 2 and 1",
        lambda m: dispatch(floats(m, 2, 1, 1, HIDDEN), table(m), ints(m, 2, 1, 1, K)),
    ),
    ("must have the same number of dimensions", lambda m: dispatch(floats(m, 2, 1, HIDDEN), ints(m, 2, 1, K), table(m))),
    (
        "Output memory config must not be sharded",
        lambda m: combine(results(m), ints(m, 1, TOKENS, 1, K), table(m), memory_config=SHARDED),
    ),
    (
        "Full operation error: Invalid shape at index 1. Each dimension of the shape must be greater than 0, butgot",
        lambda m: combine(results(m), table(m), ints(m, 1, TOKENS, 1, K)),
    ),
    (
        "Expecting input dim 0 equal to num devices: 4, got: 2",
        lambda m: combine(results(m), ints(m, 1, TOKENS, 1, K), table(m), local_reduce=True),
    ),
    (
        "Expected input shape dim 0: 4 to be equal to expert mapping dim 2: 8",
        lambda m: combine(results(m, 4), ints(m, 1, TOKENS, 1, K), table(m)),
    ),
    (
        "Number of experts 6 should be evenly divisible by devices: 4",
        lambda m: combine(results(m, 1), ints(m, 1, TOKENS, 1, K), table(m, 6)),
    ),
    (
        "Indices tensor must be uint32",
        lambda m: combine(results(m), ints(m, 1, TOKENS, 1, K), table(m, dtype=ttnn.uint32)),
    ),
    (
        "Metadata tensor must be in row major layout",
        lambda m: combine(results(m), ints(m, 1, TOKENS, 1, K), table(m, layout=ttnn.TILE_LAYOUT)),
    ),
    ("2 not in [-4, 2)", lambda m: combine(results(m), ints(m, 1, TOKENS, 1, K), ints(m, EXPERTS, DEVICES))),
    (
        "Input, metadata, and mapping tensors must all be rank 4",
        lambda m: combine(floats(m, TOKENS, 1, HIDDEN), ints(m, 1, TOKENS, 1, K), table(m)),
    ),
    ("Batch 6 must be divisible by axis group", lambda m: combine(results(m), ints(m, 1, 6, 1, K), table(m))),
    (
        "Axis must be specified at the moment",
        lambda m: combine(results(m), ints(m, 1, TOKENS, 1, K), table(m), cluster_axis=None),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "call"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_refused_in_ttnns_words(mesh: Any, text: str, call: Call) -> None:
    with pytest.raises(MeshError) as raised:
        call(mesh)
    assert text in str(raised.value)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("operation", [dispatch, combine])
def test_an_argument_of_another_rank_never_ends_in_an_error_of_torch(mesh: Any, operation: Any, which: int) -> None:
    right = [floats(mesh, 2, TOKENS, 1, HIDDEN), ints(mesh, 1, TOKENS, 1, K), table(mesh)]
    if operation is dispatch:
        right[:2] = floats(mesh, 2, 1, 1, HIDDEN), ints(mesh, 2, 1, 1, K)
    for shape in ((4,), (4, 2), (4, 4, 2), (1, 1, 1, 4, 2), (3, 5, 7, 2)):
        wrong = list(right)
        wrong[which] = (floats if which == 0 else ints)(mesh, *shape)
        try:
            operation(*wrong)
        except MeshError as error:
            assert type(error) is not MeshError, error  # noqa: PT017  # a bare one is an error of torch that was wrapped
    operation(*right)


@pytest.mark.parametrize("name", ["dispatch", "combine"])
def test_an_expert_that_the_mapping_does_not_have_is_named(mesh: Any, name: str) -> None:
    wrong = (
        f"ttnn.all_to_all_{name}: a token chose expert 99, and the mapping has 8 experts; expected indices from 0 to 7"
    )
    with pytest.raises(MeshError, match=wrong):
        if name == "dispatch":
            dispatch(floats(mesh, 2, 1, 1, HIDDEN), put(mesh, torch.full((2, 1, 1, K), 99).int()), table(mesh))
        else:
            combine(results(mesh), put(mesh, torch.full((1, TOKENS, 1, K), 99).int()), table(mesh))


def test_locally_reduced_results_come_back_once_per_chip(mesh: Any) -> None:
    """With local_reduce a chip has one row per token, and the first of the token's experts there takes it."""
    chosen = torch.tensor([[0, 4], [1, 2], [3, 7], [5, 6]] * 2).int()  # expert e is on chip e % 4
    sums = torch.arange(DEVICES * TOKENS).reshape(DEVICES, TOKENS, 1, 1).expand(-1, -1, 1, HIDDEN).bfloat16()
    x = ttnn.from_torch(
        sums, dtype=ttnn.bfloat16, layout=ROWS, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)
    )

    back = combine(x, put(mesh, chosen[None, :, None]), table(mesh), local_reduce=True)

    got = ttnn.to_torch(back, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=1))[:, :, 0, 0]
    for token, (first, second) in enumerate(chosen.tolist()):
        assert got[0, token] == sums[first % DEVICES, token, 0, 0]
        assert got[1, token] == (0 if first % DEVICES == second % DEVICES else sums[second % DEVICES, token, 0, 0])
