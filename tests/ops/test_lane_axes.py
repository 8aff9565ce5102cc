"""Operations never reach the chip axes: whatever dim is named, a chip's result is what that chip alone would compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import harness
import pytest
import torch

from ttmesh.base.dtypes import TILE_LAYOUT, bfloat16, float32, uint32
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue import families

CASES = harness.load_cases()
MESH = (2, 2)
DIMS = ("dim", "dims", "dim0", "dim1", "dim2", "axis", "axes", "slice_dim", "dim_a", "dim_b")
SHAPES = ((), (8,), (4, 64), (2, 4, 64), (2, 3, 4, 64), (2, 1, 3, 4, 64))
RANDOM = ("rand", "bernoulli", "dropout", "uniform", "sampling", "normal")
Given = tuple[list[Any], dict[str, Any]]


def takes_a_dim(name: str) -> bool:
    return not any(word in name for word in RANDOM) and bool(
        set(families.load()[name].function.parameters()) & set(DIMS)
    )


def results(mesh: MeshDevice, name: str, cell: harness.Cell, per_device: list[Given]) -> Any:
    """What every chip gets, or None where the call is refused."""
    args, kwargs = harness.arguments_on(mesh, cell, per_device)
    try:
        made = harness.list_tensors(families.load()[name].function(*args, **kwargs))
    except (RuntimeError, TypeError, IndexError, ValueError, AttributeError):
        return None
    return [
        [harness.lane_of(tensor, divmod(device, cell.mesh[1])).clone() for tensor in made]
        for device in range(len(per_device))
    ]


def compare(name: str, dtype: Any, per_device: list[Given], meshes: tuple[MeshDevice, MeshDevice]) -> bool:
    """Whether the call is taken; then every chip's result is that of a mesh of that chip alone."""
    many, alone = meshes
    together = results(many, name, harness.Cell(dtype, TILE_LAYOUT, MESH, "sharded"), per_device)
    cell = harness.Cell(dtype, TILE_LAYOUT, (1, 1), "replicated")
    if together is None:  # some refuse by value, so one chip may be the reason
        assert any(results(alone, name, cell, [given]) is None for given in per_device), f"{name}: every chip takes it"
        return False
    for device, given in enumerate(per_device):
        one = results(alone, name, cell, [given])
        assert one is not None, f"{name}: chip {device} alone refuses it"
        for got, want in zip(together[device], one[0], strict=True):
            close = torch.allclose(got.float(), want.float(), rtol=2**-7, atol=2**-7, equal_nan=True)  # one rounding
            assert close, f"{name}: chip {device} differs"
    return True


@pytest.fixture(scope="module")
def meshes() -> Iterator[tuple[MeshDevice, MeshDevice]]:
    with harness.mesh_of((2, 4), "cpu") as mesh:
        yield mesh.create_submesh(MeshShape(*MESH)), mesh.create_submesh(MeshShape(1, 1), MeshCoordinate(0, 2))


def changed(given: Given, replace: Callable[[Any], Any], position: int | str) -> Given:
    args, kwargs = list(given[0]), dict(given[1])
    if isinstance(position, int):
        args[position] = replace(args[position])
    else:
        kwargs[position] = replace(kwargs[position])
    return args, kwargs


def dim_places(case: harness.Case) -> list[int | str]:
    """The arguments of a case that name a dim."""
    names = list(families.load()[case.operation].function.__signature__.parameters)
    args, kwargs = case.make(torch.Generator().manual_seed(0))
    found: list[int | str] = [
        i for i, value in enumerate(args) if i < len(names) and names[i] in DIMS and _is_dim(value)
    ]
    return found + [name for name, value in kwargs.items() if name in DIMS and _is_dim(value)]


def _is_dim(value: Any) -> bool:
    items = value if isinstance(value, (list, tuple)) else [value]
    return bool(items) and all(type(item) is int for item in items)


WITH_DIMS = [case for case in CASES if takes_a_dim(case.operation) and case.placements]


def sweep(case: harness.Case, dims: Sequence[int], meshes: tuple[MeshDevice, MeshDevice]) -> None:
    per_device = [case.make(torch.Generator().manual_seed(d)) for d in range(4)]
    for position in dim_places(case):
        for dim in dims:
            named = [
                changed(
                    given, lambda old, dim=dim: dim if isinstance(old, int) else type(old)([dim, *old[1:]]), position
                )
                for given in per_device
            ]
            compare(case.operation, case.dtypes[0], named, meshes)


ONE_EACH = {case.operation: case for case in WITH_DIMS}


@pytest.mark.parametrize("case", list(ONE_EACH.values())[::2], ids=lambda case: case.name)
def test_dims_out_of_range_stay_on_their_chip(case: harness.Case, meshes: tuple[MeshDevice, MeshDevice]) -> None:
    sweep(case, (-6, 5), meshes)


@pytest.mark.deep
@pytest.mark.parametrize("case", WITH_DIMS, ids=lambda case: case.name)
def test_every_dim_of_every_case_stays_on_its_chip(case: harness.Case, meshes: tuple[MeshDevice, MeshDevice]) -> None:
    sweep(case, range(-7, 8), meshes)


# Calls of one tensor and a dim, on tensors of every rank.
CALLS: dict[str, Callable[[torch.Tensor, int], Given]] = {
    **{
        f"ttnn.{name}": lambda x, dim: ([x], {"dim": dim})
        for name in (
            "softmax", "moreh_softmax", "moreh_softmin", "moreh_logsoftmax", "sum", "mean", "max", "min", "std", "var",
            "prod", "argmax", "cumsum", "cumprod", "sort", "moreh_sum", "moreh_mean", "moreh_cumsum",
        )
    },
    **{f"ttnn.{name}": lambda x, dim: ([x, dim], {}) for name in ("squeeze", "unsqueeze", "glu", "reglu", "swiglu")},
    **{f"ttnn.{name}": lambda x, dim: ([[x, x], dim], {}) for name in ("concat", "stack")},
    **{f"ttnn.{name}": lambda x, dim: ([x, 2, dim], {}) for name in ("repeat_interleave", "split", "chunk", "roll")},
    "ttnn.transpose": lambda x, dim: ([x, dim, -1], {}),
    "ttnn.permute": lambda x, dim: ([x, [dim, *range(1, max(x.dim(), 1))]], {}),
    "ttnn.topk": lambda x, dim: ([x, 1], {"dim": dim}),
    "ttnn.narrow": lambda x, dim: ([x, dim, 0, 1], {}),
    "ttnn.moreh_norm": lambda x, dim: ([x], {"p": 2.0, "dim": dim}),
    "ttnn.moreh_softmax_backward": lambda x, dim: ([x, x], {"dim": dim}),
    "ttnn.experimental.fast_reduce_nc": lambda x, dim: ([x], {"dims": [dim]}),
    "ttnn.gather": lambda x, dim: ([x, dim, harness.On(torch.zeros(x.shape, dtype=torch.int64), uint32)], {}),
}  # fmt: skip


def sweep_ranks(name: str, shapes: Sequence[tuple[int, ...]], meshes: tuple[MeshDevice, MeshDevice]) -> int:
    """How many of the calls were taken."""
    taken = 0
    for shape in shapes:
        values = [torch.randn(shape, generator=torch.Generator().manual_seed(d)) for d in range(4)]
        for dim in range(-len(shape) - 2, len(shape) + 3):
            taken += compare(name, bfloat16, [CALLS[name](one, dim) for one in values], meshes)
    return taken


@pytest.mark.parametrize("name", CALLS)
def test_the_dims_of_a_scalar_and_of_a_row_stay_on_their_chip(name: str, meshes: tuple[MeshDevice, MeshDevice]) -> None:
    sweep_ranks(name, SHAPES[:2], meshes)


@pytest.mark.deep
@pytest.mark.parametrize("name", CALLS)
def test_every_dim_of_every_rank_stays_on_its_chip(name: str, meshes: tuple[MeshDevice, MeshDevice]) -> None:
    assert sweep_ranks(name, SHAPES, meshes), f"{name} takes no dim at all"


def sweep_low_ranks(name: str, meshes: tuple[MeshDevice, MeshDevice], ranks: int = 3) -> None:
    """Operations of one tensor on ranks below those that they are for: their last dims would be chip axes."""
    for shape in SHAPES[:ranks]:
        values = [torch.rand(shape, generator=torch.Generator().manual_seed(d)) for d in range(4)]
        compare(name, bfloat16, [([one], {}) for one in values], meshes)


NAMES = sorted(name for name in families.load() if not any(word in name for word in (*RANDOM, "move", "synchronize")))


# An eighth by the names' hashes: the same ones whatever else the process has imported.
@pytest.mark.parametrize("name", [name for name in NAMES if crc32(name.encode()) % 8 == 0])
def test_an_operation_of_a_scalar_or_a_row_stays_on_its_chip(name: str, meshes: tuple[MeshDevice, MeshDevice]) -> None:
    sweep_low_ranks(name, meshes)


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_every_operation_of_a_low_rank_stays_on_its_chip(name: str, meshes: tuple[MeshDevice, MeshDevice]) -> None:
    sweep_low_ranks(name, meshes, ranks=4)


@pytest.mark.parametrize("name", ["moreh_softmax", "moreh_softmin", "moreh_logsoftmax"])
def test_moreh_softmax_counts_dims_from_the_front(name: str, meshes: tuple[MeshDevice, MeshDevice]) -> None:
    cell = harness.Cell(float32, TILE_LAYOUT, MESH, "sharded")
    args, _ = harness.arguments_on(meshes[0], cell, [([torch.ones(2, 32, 32)], {})] * 4)
    function = families.load()[f"ttnn.{name}"].function

    with pytest.raises(TypeError, match="incompatible function arguments"):
        function(args[0], -1)
    with pytest.raises(RuntimeError, match="dim 3 should be less than output tensor rank 3"):
        function(args[0], 3)
