"""minimal_matmul of activations in two parts: values, and refusals in the words of TT-NN 0.81.1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ttmesh import ttnn

minimal, split = ttnn.experimental.minimal_matmul, ttnn.experimental.minimal_matmul_split


@pytest.fixture(scope="module")
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as mesh:
        yield mesh


def on(mesh: ttnn.MeshDevice, *shape: int, dtype: object = ttnn.bfloat16, layout: object = ttnn.TILE_LAYOUT):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return ttnn.from_torch(values, dtype=dtype, layout=layout, device=mesh)


def read(tensor: ttnn.Tensor) -> torch.Tensor:
    return ttnn.to_torch(ttnn.get_device_tensors(tensor)[1]).float()


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=["matrix", "batches"])
def test_two_parts_are_joined_over_k(mesh: ttnn.MeshDevice, batch: tuple[int, ...]) -> None:
    first, second, weight, bias = on(mesh, *batch, 40, 96), on(mesh, *batch, 40, 32), on(mesh, 128, 64), on(mesh, 1, 64)

    result = minimal([first, second], weight, bias_tensor=bias)

    expected = torch.cat([read(first), read(second)], -1) @ read(weight) + read(bias)
    assert torch.allclose(read(result), expected, rtol=0.02, atol=0.1)
    assert torch.equal(read(minimal((first, second), weight, bias_tensor=bias)), read(result))


@pytest.mark.parametrize("rows", [128, 116])
def test_a_ragged_part_ends_with_its_tile(mesh: ttnn.MeshDevice, rows: int) -> None:
    first, second, weight = on(mesh, 64, 94), on(mesh, 64, 20), on(mesh, rows, 64)

    expected = read(first) @ read(weight)[:94] + read(second) @ read(weight)[96:116]

    assert torch.allclose(read(minimal([first, second], weight)), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize(
    ("shapes", "wrong"),
    [
        ([], "list input must be exactly 2 tensors .prefix, suffix. for fused concat over K, got 0"),
        ([(64, 128)], "got 1"),
        ([(64, 64), (64, 32), (64, 32)], "got 3"),
        (
            [(64, 96), (32, 32)],
            r"inputs must differ only on the K \(last\) axis; dim 0 differs \(input=64, second=32\)",
        ),
        ([(1, 64, 96), (64, 32)], r"second-input rank \(2\) must match input rank \(3\)"),
        ([(64, 64), (64, 32)], r"prefix_padded_K\(64\) \+ suffix_padded_K\(32\) must equal weight_padded_K\(128\)"),
    ],
    ids=["none", "one", "three", "rows", "ranks", "weights"],
)
def test_parts_that_do_not_fit_are_refused(mesh: ttnn.MeshDevice, shapes: list[tuple[int, ...]], wrong: str) -> None:
    with pytest.raises(RuntimeError, match=wrong):
        minimal([on(mesh, *shape) for shape in shapes], on(mesh, 128, 64))


def test_parts_of_another_format_or_layout_are_refused(mesh: ttnn.MeshDevice) -> None:
    first, weight = on(mesh, 64, 96), on(mesh, 128, 64)
    with pytest.raises(RuntimeError, match=r"second-input dtype .DataType::BFLOAT8_B. must match activation dtype"):
        minimal([first, on(mesh, 64, 32, dtype=ttnn.bfloat8_b)], weight)
    with pytest.raises(RuntimeError, match="fused concat requires TILE layout for second input"):
        minimal([first, on(mesh, 64, 32, layout=ttnn.ROW_MAJOR_LAYOUT)], weight)


@pytest.mark.parametrize(
    ("weight", "bias", "wrong"),
    [
        ((96, 64), None, "inner dimensions must match, got K=128 and K_w=96"),
        ((2, 128, 64), None, "weight must have 1 in all dims < -2"),
        ((128, 64), (2, 64), "bias must be 1 in all dims except the last"),
        ((128, 64), (1, 32), r"bias last dimension must equal N \(64\), got 32"),
    ],
    ids=["K", "batches of weights", "rows of bias", "columns of bias"],
)
def test_weights_and_biases_that_do_not_fit_are_refused(mesh: ttnn.MeshDevice, weight, bias, wrong: str) -> None:
    with pytest.raises(RuntimeError, match=f"minimal_matmul {wrong}"):
        minimal(on(mesh, 64, 128), on(mesh, *weight), bias_tensor=None if bias is None else on(mesh, *bias))


def test_the_split_form_takes_one_tensor(mesh: ttnn.MeshDevice) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        split([on(mesh, 64, 96), on(mesh, 64, 32)], on(mesh, 128, 64), chunks=2)
