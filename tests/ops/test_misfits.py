"""Arguments of the wrong type or shape are named in the caller's words, whoever noticed them first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ops.catalogue import families
from ttmesh.ops.catalogue.op_function import OpFunction


@pytest.fixture(scope="module")
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def a(mesh: ttnn.MeshDevice) -> ttnn.Tensor:
    return on(mesh, 32, 64)


def on(mesh: ttnn.MeshDevice, *shape: int) -> ttnn.Tensor:
    return ttnn.from_torch(torch.zeros(shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: ttnn.add(a, torch.ones(32, 64)),
        lambda a: a + torch.ones(32, 64),
        lambda a: ttnn.matmul(a, torch.ones(64, 32)),
        lambda a: ttnn.where(a, a, torch.ones(32, 64)),
    ],
    ids=["add", "operator", "matmul", "where"],
)
def test_a_torch_tensor_is_to_be_converted_first(a: ttnn.Tensor, call) -> None:
    with pytest.raises(TypeError, match=r"incompatible function arguments.*is a torch\.Tensor; convert it with ttnn\."):
        call(a)


def test_a_numpy_array_is_to_be_converted_first(a: ttnn.Tensor) -> None:
    with pytest.raises(TypeError, match=r"input_tensor_b is a numpy\.ndarray; convert it with ttnn\.from_torch"):
        ttnn.add(a, np.ones((32, 64)))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"memory_config": "dram"}, r"memory_config='dram' is a str; pass ttnn\.DRAM_MEMORY_CONFIG"),
        ({"dtype": "bf16"}, r"dtype='bf16' is a str; pass ttnn\.bfloat16"),
        ({"dtype": torch.float32}, r"dtype=torch\.float32 is not a DataType; pass ttnn\.bfloat16"),
        ({"output_tensor": 3}, r"output_tensor=3 is a int; pass a tensor on the device"),
    ],
    ids=["memory_config", "dtype", "torch dtype", "output_tensor"],
)
def test_options_of_the_wrong_type_are_named(a: ttnn.Tensor, options, wrong) -> None:
    with pytest.raises(TypeError, match=rf"ttnn\.add\(\): incompatible function arguments\. {wrong}"):
        ttnn.add(a, a, **options)


def test_other_types_are_listed(a: ttnn.Tensor) -> None:
    with pytest.raises(
        TypeError, match=r"ttnn\.sum\(\): incompatible.*Invoked with types: input_tensor: Tensor, dim: str"
    ):
        ttnn.sum(a, dim="x")


def test_a_bias_that_does_not_fit_names_the_shapes(mesh: ttnn.MeshDevice, a: ttnn.Tensor) -> None:
    weight, bias = on(mesh, 64, 32), on(mesh, 1, 64)

    with pytest.raises(RuntimeError, match=r"dim a: 32, dim b: 64; expected a bias of 32 columns"):
        ttnn.linear(a, weight, bias=bias)


def test_ids_outside_the_table_are_told_with_their_range(mesh: ttnn.MeshDevice) -> None:
    ids = ttnn.from_torch(torch.tensor([[3, 70]]), dtype=ttnn.uint32, device=mesh)
    table = ttnn.from_torch(torch.zeros(64, 32), dtype=ttnn.bfloat16, device=mesh)

    with pytest.raises(RuntimeError, match="ids from 3 to 70 for a table of 64 rows; expected ids from 0 to 63"):
        ttnn.embedding(ids, table)
        ttnn.synchronize_device(mesh)  # a GPU reports it when a call waits


def test_what_is_no_device_layout_or_shape_is_refused(mesh: ttnn.MeshDevice) -> None:
    values = torch.ones(32, 32)

    with pytest.raises(TypeError, match=r"device='cpu' is a str; pass what open_mesh_device\(\) returned"):
        ttnn.from_torch(values, device="cpu")
    with pytest.raises(TypeError, match=r"layout='tile' is a str; pass ttnn.TILE_LAYOUT or ttnn.ROW_MAJOR_LAYOUT"):
        ttnn.from_torch(values, layout="tile")
    with pytest.raises(TypeError, match=r"mesh_shape=\(2, 4\) is a tuple; pass ttnn.MeshShape\(2, 4\), say"):
        ttnn.open_mesh_device((2, 4))


def test_help_prints_what_an_operation_does_and_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    help(ttnn.softmax)
    help(ttnn.all_reduce)

    printed = capsys.readouterr().out
    assert "Exponentials that sum to 1 along a dim." in printed
    assert "softmax(input_tensor, dim=" in printed
    assert "ttmesh's own options: algorithm, mode, reduction" in printed


def test_a_misspelt_option_of_a_collective_lists_ttmeshs_own_too(a: ttnn.Tensor) -> None:
    with pytest.raises(TypeError, match=r"argument 'math_op'.*own options: algorithm, mode, reduction"):
        ttnn.all_reduce(a, math_op="max")


def test_a_list_in_place_of_a_tensor_is_a_type_error_wherever_the_bindings_types_are_known(a: ttnn.Tensor) -> None:
    """Of operations outside ttnn.experimental nearly all are."""
    operations = {entry.function for entry in families.load().values() if isinstance(entry.function, OpFunction)}
    asked = 0
    for operation in sorted(operations, key=lambda op: op.python_fully_qualified_name):
        required = [p.name for p in operation._overloads[0].signature.parameters.values() if p.default is p.empty]
        kind = next((types[required[0]] for types in operation._types if required and required[0] in types), "")
        if "Tensor" not in kind or ("[" in kind and operation.name != "minimal_matmul"):
            continue
        asked += 1
        others = {name: a if "tensor" in name or name in ("input", "other") else 1 for name in required[1:]}
        with pytest.raises(
            (TypeError, RuntimeError), match=r"incompatible function arguments|list input must be"
        ) as error:
            operation(**{required[0]: [a]}, **others)
        assert isinstance(error.value, TypeError) or operation.name == "minimal_matmul"
    assert asked > 400
