"""What element-wise operations refuse, choose and remember."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ops.elementwise.binary import BINARY


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as mesh:
        yield mesh


def on(
    mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: ttnn.DataType = ttnn.bfloat16, **options: object
) -> ttnn.Tensor:
    options.setdefault("layout", ttnn.TILE_LAYOUT)
    return ttnn.from_torch(values, dtype=dtype, device=mesh, **options)


def value(tensor: ttnn.Tensor) -> float:
    return float(ttnn.to_torch(ttnn.get_device_tensors(tensor)[0]).flatten()[0])


def test_a_number_changes_the_result_but_not_the_plan(mesh: ttnn.MeshDevice) -> None:
    one = on(mesh, torch.ones(32, 32))

    assert [value(ttnn.add(one, number)) for number in (1.0, 2.0, 1.0)] == [2.0, 3.0, 2.0]
    assert mesh.num_program_cache_entries() == 1


def test_a_default_is_not_taken_for_the_last_value(mesh: ttnn.MeshDevice) -> None:
    one = on(mesh, torch.ones(32, 32))

    answers = [value(ttnn.addcmul(one, one, one, value=3.0)) for _ in range(2)]
    answers += [value(ttnn.addcmul(one, one, one)) for _ in range(2)]
    answers += [value(ttnn.addcmul(one, one, one, value=v)) for v in (5.0, 3.0, 5.0)]

    assert answers == [4.0, 4.0, 2.0, 2.0, 6.0, 4.0, 6.0]


def test_options_are_part_of_the_plan(mesh: ttnn.MeshDevice) -> None:
    one = on(mesh, torch.ones(32, 32))

    for _ in range(2):
        assert ttnn.add(one, one, dtype=ttnn.float32).dtype is ttnn.float32
        assert ttnn.add(one, one).dtype is ttnn.bfloat16
        assert ttnn.add(one, one, memory_config=ttnn.L1_MEMORY_CONFIG).memory_config().is_l1()


def test_shapes_that_do_not_broadcast_are_refused(mesh: ttnn.MeshDevice) -> None:
    a, b = on(mesh, torch.ones(2, 32)), on(mesh, torch.ones(2, 33))

    with pytest.raises(RuntimeError, match="Invalid subtile broadcast type"):
        ttnn.add(a, b)


def test_formats_that_a_kernel_lacks_are_refused(mesh: ttnn.MeshDevice) -> None:
    integers, real = on(mesh, torch.ones(32, 32), ttnn.int32), on(mesh, torch.ones(32, 32))

    with pytest.raises(RuntimeError, match=r"dtype DataType\.BFLOAT16 is not supported for binary operation"):
        ttnn.gcd(real, real)
    with pytest.raises(RuntimeError, match="Mixed dtype is not supported for binary operation"):
        ttnn.add(integers, real)


def test_integer_division_makes_float32(mesh: ttnn.MeshDevice) -> None:
    three, two = (on(mesh, torch.full((32, 32), n), ttnn.int32) for n in (3, 2))

    assert ttnn.div(three, two).dtype is ttnn.float32
    assert ttnn.div(three, two, rounding_mode="floor").dtype is ttnn.int32
    with pytest.raises(RuntimeError, match="Incorrect rounding mode"):
        ttnn.div(three, two, rounding_mode="up")


def test_row_major_stays_and_tiles_win(mesh: ttnn.MeshDevice) -> None:
    rows, tiles = on(mesh, torch.ones(32, 32), layout=ttnn.ROW_MAJOR_LAYOUT), on(mesh, torch.ones(32, 32))

    assert ttnn.add(rows, rows).layout is ttnn.ROW_MAJOR_LAYOUT
    assert ttnn.add(rows, tiles).layout is ttnn.TILE_LAYOUT


def test_in_place_operations_keep_the_buffer(mesh: ttnn.MeshDevice) -> None:
    one = on(mesh, torch.ones(32, 32))

    result = ttnn.add_(one, 2.0)

    assert result.buffer_address() == one.buffer_address()
    assert value(one) == 3.0


def test_gradients_are_computed_as_asked(mesh: ttnn.MeshDevice) -> None:
    grad, a, b = (on(mesh, torch.full((32, 32), n)) for n in (1.0, 2.0, 3.0))

    assert [None if g is None else value(g) for g in ttnn.mul_bw(grad, a, b)] == [3.0, 2.0]
    first, second = ttnn.mul_bw(grad, a, b, are_required_outputs=[False, True])
    assert first is None
    assert value(second) == 2.0
    with pytest.raises(RuntimeError, match="At least one gradient is expected to be calculated"):
        ttnn.mul_bw(grad, a, b, are_required_outputs=[False, False])


def test_complex_tensors_are_pairs(mesh: ttnn.MeshDevice) -> None:
    z = ttnn.complex_tensor(on(mesh, torch.full((32, 32), 3.0)), on(mesh, torch.full((32, 32), 4.0)))

    assert value(ttnn.abs(z)) == 5.0
    assert value(ttnn.conj(z).imag) == -4.0
    assert value(ttnn.is_real(z)) == 0.0
    assert value(ttnn.angle(z)) == pytest.approx(0.9273, abs=4e-3)
    assert value(ttnn.reciprocal(z).real) == pytest.approx(0.12, abs=1e-3)
    (gradient,) = ttnn.real_bw(on(mesh, torch.ones(32, 32)), z, memory_config=ttnn.DRAM_MEMORY_CONFIG)
    assert (value(gradient.real), value(gradient.imag)) == (1.0, 0.0)


def test_losses_reduce_on_request(mesh: ttnn.MeshDevice) -> None:
    a, b = on(mesh, torch.full((32, 32), 3.0), ttnn.float32), on(mesh, torch.full((32, 32), 1.0), ttnn.float32)

    assert value(ttnn.mse_loss(a, b)) == 4.0
    assert value(ttnn.l1_loss(a, b, reduction=ttnn.LossReductionMode.SUM)) == 2048.0
    assert value(ttnn.mse_loss(a, b, reduction=ttnn.LossReductionMode.MEAN)) == 4.0


def test_unknown_activations_list_the_known_ones() -> None:
    with pytest.raises(RuntimeError, match="Unknown unary op: rellu; expected one of"):
        ttnn.string_to_unary_with_param("rellu")


def test_an_empty_chain_is_refused(mesh: ttnn.MeshDevice) -> None:
    with pytest.raises(RuntimeError, match="Op chain cannot be empty"):
        ttnn.unary_chain(on(mesh, torch.ones(32, 32)), [])


def test_a_result_written_into_a_given_tensor_allocates_no_page(mesh: ttnn.MeshDevice) -> None:
    one, target = on(mesh, torch.ones(64, 32)), on(mesh, torch.zeros(64, 32))
    before = ttnn.get_buffer_pages(mesh)

    ttnn.add(one, one, output_tensor=target)

    assert ttnn.get_buffer_pages(mesh) == before
    assert len(before) == 2 * 2 * 2  # tensors, tiles, devices
    assert value(target) == 2.0


def test_two_parameters_that_are_one_object_stay_two(mesh: ttnn.MeshDevice) -> None:
    zero, same = on(mesh, torch.zeros(32, 32)), 1.5

    ttnn.threshold(zero, same, same)

    assert value(ttnn.threshold(zero, 1.5, -0.5)) == -0.5


def test_bfloat16_packs_nan_as_infinity(mesh: ttnn.MeshDevice) -> None:
    zero, exact = on(mesh, torch.zeros(32, 32)), on(mesh, torch.zeros(32, 32), ttnn.float32)

    assert value(ttnn.div(zero, zero)) == float("inf")
    assert value(ttnn.where(zero, 1.0, float("nan"))) == float("inf")
    assert math.isnan(value(ttnn.div(exact, exact)))


def test_subnormal_results_of_exp2_are_0(mesh: ttnn.MeshDevice) -> None:
    assert value(ttnn.exp2(on(mesh, torch.full((32, 32), -127.0), ttnn.float32))) == 0.0


def test_tails_of_gradients_keep_their_digits(mesh: ttnn.MeshDevice) -> None:
    one, far = on(mesh, torch.ones(32, 32)), on(mesh, torch.full((32, 32), -8.0))

    assert value(ttnn.tanh_bw(one, far)[0]) == pytest.approx(1 / math.cosh(8) ** 2, rel=2**-8)
    assert value(ttnn.gelu_bw(one, far, approximate="none")[0]) == pytest.approx(
        0.5 * math.erfc(8 / math.sqrt(2)) - 8 * math.exp(-32) / math.sqrt(2 * math.pi), rel=2**-8
    )


def test_snake_beta_takes_parameters_per_column_only(mesh: ttnn.MeshDevice) -> None:
    x, rows, other = (on(mesh, torch.ones(shape)) for shape in ((1, 1, 64, 32), (1, 1, 64, 1), (1, 1, 1, 32)))

    with pytest.raises(RuntimeError, match=r"input\.W == alpha\.W"):
        ttnn.snake_beta(x, rows, rows)
    with pytest.raises(RuntimeError, match=r"requires alpha\.shape == beta\.shape"):
        ttnn.snake_beta(x, other, x)


def test_broadcast_to_names_the_dim_that_does_not_fit(mesh: ttnn.MeshDevice) -> None:
    x = on(mesh, torch.ones(2, 1))

    with pytest.raises(RuntimeError, match=r"dimension 0 \(size 2\) cannot be broadcast to output dimension 0"):
        ttnn.experimental.broadcast_to(x, (3, 1))
    with pytest.raises(RuntimeError, match="must be at most 4D"):
        ttnn.experimental.broadcast_to(x, (1, 1, 1, 2, 1))


def test_an_activation_after_a_comparison_works_on_numbers(mesh: ttnn.MeshDevice) -> None:
    a, b = on(mesh, torch.tensor([[1.0, 2.0]])), on(mesh, torch.tensor([[2.0, 1.0]]))
    result = ttnn.gt(a, b, activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.ABS)])
    assert ttnn.to_torch(ttnn.get_device_tensors(result)[0]).tolist() == [[0.0, 1.0]]


def test_an_output_for_operands_that_do_not_broadcast_is_refused(mesh: ttnn.MeshDevice) -> None:
    a, b, out = (on(mesh, torch.ones(shape)) for shape in ((2, 32, 32), (3, 32, 32), (3, 32, 32)))
    with pytest.raises(RuntimeError, match="provided does not match the broadcasted output shape of operands"):
        ttnn.add(a, b, output_tensor=out)


def test_quantization_names_the_formats_it_takes(mesh: ttnn.MeshDevice) -> None:
    floats = on(mesh, torch.rand(32, 32))
    integers = on(mesh, torch.ones(32, 32).int(), ttnn.int32)

    with pytest.raises(
        RuntimeError, match="Quantize only supports int32, int8 or uint8 outputs for now, got DataType::"
    ):
        ttnn.quantize(floats, 0.1, 3, dtype=ttnn.bfloat16)
    with pytest.raises(
        RuntimeError, match="Requantize only supports int32, int8 or uint8 inputs for now, got DataType::"
    ):
        ttnn.requantize(floats, 0.1, 3, 0.2, 1)
    with pytest.raises(RuntimeError, match=r"Per-channel \(axis\) requantize does not support int8/uint8 output yet"):
        ttnn.requantize(integers, 0.1, 3, 0.2, 1, axis=1, dtype=ttnn.uint8)
    with pytest.raises(RuntimeError, match="Dequantize only supports bf16/f32 outputs for now"):
        ttnn.dequantize(integers, 0.1, 3, dtype=ttnn.int32)


@pytest.mark.parametrize(("dtype", "sizes"), [(ttnn.bfloat16, (10240, 16384)), (ttnn.bfloat8_b, (6400, 8704))])
def test_circular_buffers_of_numbers_and_of_three_operands_are_those_of_tt_nns_captures(
    mesh: ttnn.MeshDevice, dtype: ttnn.DataType, sizes: tuple[int, int]
) -> None:
    x = on(mesh, torch.ones(1, 1, 128, 512), dtype)
    found = []

    for call in (lambda: ttnn.add(x, 1.0), lambda: ttnn.where(x, x, x)):
        ttnn.graph.begin_graph_capture()
        call()
        nodes = ttnn.graph.end_graph_capture()
        buffers = [node["params"] for node in nodes if node["node_type"] == "circular_buffer_allocate"]
        found.append(sum(int(one["size"]) for one in buffers if one["device_id"] == buffers[0]["device_id"]))

    assert tuple(found) == sizes


@pytest.mark.parametrize("dtype", [ttnn.int32, ttnn.uint32, ttnn.uint16], ids=lambda dtype: dtype.name)
def test_no_value_of_integers_makes_an_operation_that_takes_them_fail(
    mesh: ttnn.MeshDevice, dtype: ttnn.DataType
) -> None:
    values = torch.tensor([0, 1, 7, 2**15] if dtype is ttnn.uint16 else [0, 1, 2**31 - 1, 5]).repeat(32, 8)
    ones, first = on(mesh, torch.ones_like(values), dtype), on(mesh, values, dtype)
    taken = []
    for name in BINARY:
        operation = getattr(ttnn, name)
        try:
            operation(first, ones)
        except RuntimeError:
            continue  # this operation does not take the format
        operation(first, on(mesh, values.flip(1), dtype))
        operation(first, on(mesh, torch.zeros_like(values), dtype))
        taken.append(name)
    assert len(taken) >= 10


def test_what_is_left_of_an_integer_after_division_by_zero_is_the_integer(mesh: ttnn.MeshDevice) -> None:
    values = torch.tensor([-7, 7, 0, 5], dtype=torch.int32).repeat(32, 8)
    divisors = torch.tensor([0, 3, 0, -3], dtype=torch.int32).repeat(32, 8)
    a, b = on(mesh, values, ttnn.int32), on(mesh, divisors, ttnn.int32)

    for operation, expected in ((ttnn.remainder, [-7, 1, 0, -1]), (ttnn.fmod, [-7, 1, 0, 2])):
        assert ttnn.to_torch(ttnn.get_device_tensors(operation(a, b))[0])[0, :4].tolist() == expected
        assert ttnn.to_torch(ttnn.get_device_tensors(operation(a, 0))[0])[0, :4].tolist() == [-7, 7, 0, 5]
