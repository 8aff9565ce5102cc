"""Max, average and adaptive pools over [batch, height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import Golden, composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.configs.conv_config import Op2DSliceConfig, Op2DSliceType, borders, pair
from ttmesh.ops.goldens import pool_resample as goldens
from ttmesh.ops.lane_functions.fpu_windows import average_adaptively, sum_windows
from ttmesh.ops.pool.pool_inputs import Size, as_images, check_shards, check_window
from ttmesh.ops.pool.pool_sharding import PoolWork, choose_cores, index_bytes, shard_output
from ttmesh.ops.pool.pool_stages import PoolShape, PoolSlices, choose_slices, pool_stages, sliced_pool_stages
from ttmesh.ops.stages.conversion_stages import global_pool_stages
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import deallocate

MAX: Callable[..., Any] = F.max_pool2d  # its type depends on return_indices
Pool2d = Callable[[Lanes], "Lanes | tuple[Lanes, Lanes]"]


def apply_pool(x: Lanes, size: Size, lane_axes: int, pool: Pool2d) -> Any:
    """Run a torch pool on the images of [*mesh, .., channels]; the result is [*mesh, 1, 1, rows, channels]."""
    _, height, width, channels = size
    dims = x.shape[:lane_axes]
    images = x[..., :channels].reshape(-1, height, width, channels).movedim(-1, 1)
    results = pool(images)

    def to_rows(result: Lanes) -> Lanes:
        return result.movedim(1, -1).reshape(*dims, 1, 1, -1, channels)

    return to_rows(results) if isinstance(results, Lanes) else [to_rows(result) for result in results]


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    specs = []
    layout, x = call["out_layout"], call.specs[0]
    for i, (shape, _) in enumerate(inferred):
        dtype = call["out_dtype"]
        if i:  # indices count within one image
            dtype = DataType.UINT16 if call["size"][1] * call["size"][2] <= 65535 else DataType.UINT32
        memory_config = call["memory_config"] or _choose_memory(call, shape, layout, x)
        if call["slices"] is not None and _plan(call, shape[2], TensorSpec(shape, dtype, layout)).slices is not None:
            memory_config = DRAM_MEMORY_CONFIG
        specs.append(TensorSpec(shape, dtype, layout, memory_config=memory_config))
    return specs


def _choose_memory(call: Call, shape: Sequence[int], layout: Layout, x: TensorSpec) -> MemoryConfig:
    """Shards in L1; the mean of whole images stays interleaved, as a reduction's result."""
    if call["kind"] == "avg" and call["stride"] is None and tuple(call["window"]) == (1, 1):
        return MemoryConfig(buffer_type=x.memory_config.buffer_type)
    work = _describe_work(call, shape[2], layout)
    return shard_output(choose_cores(call, work), work)


def _describe_work(call: Call, rows: int, layout: Layout) -> PoolWork:
    x, (_, height, width, channels) = call.specs[0], call["size"]
    exact = not call["ceil_mode"] or not _has_ceil_windows(call)
    padded = any(call["padding"] or ())
    return PoolWork(
        rows=rows, channels=channels, window=_window_of(call), dtype=x.dtype, tiled_input=x.layout is Layout.TILE,
        tiled_output=layout is Layout.TILE, averages=call["kind"] == "avg",
        scalar_per_core=call["kind"] != "avg" or call["divisor_override"] is not None
        or (exact and (call["count_include_pad"] is not False or not padded)),
        index_bytes=index_bytes(height, width) if call["return_indices"] else 0,
    )  # fmt: skip


class _PoolPlan(NamedTuple):
    """How a pool runs: its work, its windows and its slices."""

    work: PoolWork
    shape: PoolShape
    slices: PoolSlices | None


def _plan(call: Call, rows: int, final: TensorSpec) -> _PoolPlan:
    batch, height, width, _ = call["size"]
    window, work = _window_of(call), _describe_work(call, rows, final.layout)
    if call["stride"] is None:
        out: tuple[int, int] = tuple(call["window"])
        down, across = (length // count for length, count in zip((height, width), out, strict=True))
        stride = (down, across)
    else:
        stride = call["stride"]
        dilation, padding = call["dilation"] or (1, 1), call["padding"]
        image = torch.empty(height, width, device="meta", dtype=torch.float32)
        out = _count_windows(image, window, stride, padding, dilation, call["ceil_mode"])
    assert batch * out[0] * out[1] == rows, "windows are counted as the pool counts them"
    shape = PoolShape(out, window, stride)
    return _PoolPlan(work, shape, choose_slices(call, final, work, shape))


def _stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The programs of a pool; a pool of whole images is a reduction."""
    if call["stride"] is None and call["kind"] == "avg" and tuple(call["window"]) == (1, 1):
        return None
    plan = _plan(call, results[0].shape[2], results[0])
    if plan.slices is not None:
        return sliced_pool_stages(call, results[0], plan.work, plan.shape, plan.slices)
    return pool_stages(call, results, plan.work, *plan.shape)


def _read_slices(x: Tensor, config: Op2DSliceConfig | None) -> PoolSlices | None:
    """The slices of a tensor in DRAM; tensors in L1 fit already."""
    if x.device() is None or x.memory_config().is_l1() or x.memory_config().is_sharded():
        return None
    if config is None:
        return PoolSlices(True, 0)
    if config.num_slices == 1 or config.slice_type is Op2DSliceType.L1_FULL:
        return None
    return PoolSlices(config.slice_type is Op2DSliceType.DRAM_HEIGHT, config.num_slices)


def _window_of(call: Call) -> tuple[int, int]:
    """The window; that of an adaptive pool covers the image divided by the result."""
    window: tuple[int, int] = call["window"]
    if call["stride"] is not None:
        return window
    _, height, width, _ = call["size"]
    down, across = (
        length - (count - 1) * (length // count) for length, count in zip((height, width), window, strict=True)
    )
    return down, across


def _has_ceil_windows(call: Call) -> bool:
    """Whether ceil_mode adds a window that floor would leave out."""
    size, window, stride, padding = call["size"], call["window"], call["stride"], call["padding"]
    dilation = call["dilation"] or (1, 1)
    for i, length in enumerate(size[1:3]):
        span = length + padding[2 * i] + padding[2 * i + 1] - dilation[i] * (window[i] - 1) - 1
        if span % stride[i]:
            return True
    return False


def _scratch(call: Call) -> int:
    """Circular buffers per core: tiles of a window's sticks, of numbers and of partial results; indices have their own."""
    return (14 if call["return_indices"] else 7) * tile_bytes(DataType.BFLOAT16, Tile((32, 32)))


WIDE = (DataType.FLOAT32, DataType.UINT32, DataType.UINT16, DataType.UINT8)


def _check(call: Call) -> None:
    x = call["input"].spec
    require(x.dtype not in WIDE, "Only BFLOAT16 supported for now", "bfloat16", "Convert it with ttnn.typecast.")
    batch, height, width, channels = call["size"]
    if x.shape.volume() != batch * height * width * x.shape[-1] or x.shape[-1] < channels:
        raise ShapeError(
            f"pool got an input of shape {x.shape}",
            expected=f"[1, 1, {batch * height * width}, {channels}] or [{batch}, {height}, {width}, {channels}]",
            fix="Check batch_size, input_h, input_w and channels.",
        )
    check_shards(x)
    if call["stride"] is not None:
        check_window((height, width), call["window"], call["stride"], call["padding"], call["dilation"] or (1, 1))


def _count_windows(
    images: Lanes,
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    ceil_mode: bool,
) -> tuple[int, int]:
    """The number of windows down and across; the one that ceil_mode adds must begin before the padding after the image."""
    counts = []
    for i, length in enumerate(images.shape[-2:]):
        before, after = padding[2 * i : 2 * i + 2]
        span = length + before + after - dilation[i] * (window[i] - 1) - 1
        count = span // stride[i] + 1
        counts.append(count + (ceil_mode and span % stride[i] > 0 and count * stride[i] < length + before))
    return counts[0], counts[1]


@device_operation("ttnn.max_pool2d", out=_spec, check=_check, scratch=_scratch, stages=_stages)
def _max_pool(
    input: Lanes,
    size: Size,
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    ceil_mode: bool,
    return_indices: bool,
    lane_axes: int,
) -> Any:
    def pool(images: Lanes) -> Any:
        top, bottom, left, right = padding
        if top == bottom and left == right and top <= window[0] // 2 and left <= window[1] // 2:
            return MAX(images, window, stride, (top, left), dilation, ceil_mode, return_indices)
        padded = F.pad(images, (left, right, top, bottom), value=float("-inf"))
        rows, columns = _count_windows(images, window, stride, padding, dilation, ceil_mode)
        result = MAX(padded, window, stride, 0, dilation, ceil_mode, return_indices)
        if not return_indices:
            return result[..., :rows, :columns]
        values, index = (x[..., :rows, :columns] for x in result)
        row, column = index // padded.shape[-1] - top, index % padded.shape[-1] - left
        return values, row * images.shape[-1] + column

    return apply_pool(input, size, lane_axes, pool)


@device_operation("ttnn.avg_pool2d", out=_spec, check=_check, scratch=_scratch, stages=_stages)
def _avg_pool(
    input: Lanes,
    size: Size,
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    lane_axes: int,
) -> Any:
    def pool(images: Lanes) -> Lanes:
        widened, (top, bottom, left, right) = images.float(), padding
        if fpu.is_emulated(images):
            return _average_on_fpu(images, window, stride, padding, ceil_mode, count_include_pad, divisor_override)
        if top == bottom and left == right:
            return F.avg_pool2d(widened, window, stride, (top, left), ceil_mode, count_include_pad, divisor_override)
        rows, columns = _count_windows(images, window, stride, padding, (1, 1), ceil_mode)
        sums, counts = (
            F.avg_pool2d(F.pad(x, (left, right, top, bottom), value=pad_value), window, stride, 0, ceil_mode, True, 1)[
                ..., :rows, :columns
            ]
            for x, pad_value in ((widened, 0.0), (torch.ones_like(widened), float(count_include_pad)))
        )
        return sums / (counts if divisor_override is None else divisor_override)

    return apply_pool(input, size, lane_axes, pool)


def _average_on_fpu(
    images: Lanes,
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Lanes:
    """Windows with the same number of elements share a scaler, as in TT-NN's kernel."""
    rows, columns = _count_windows(images, window, stride, padding, (1, 1), ceil_mode)
    top, bottom, left, right = padding
    down = max(0, (rows - 1) * stride[0] + window[0] - images.shape[-2] - top)
    across = max(0, (columns - 1) * stride[1] + window[1] - images.shape[-1] - left)
    around = (top, down, left, across)
    if divisor_override is not None:
        return sum_windows(images, window, stride, around, 1 / divisor_override)
    ones = torch.ones((1, 1, *images.shape[-2:]), device=images.device, dtype=torch.float32)
    counted = F.pad(ones, (left, right, top, bottom), value=float(count_include_pad))
    counted = F.pad(counted, (0, across - right, 0, down - bottom)) if (across, down) != (right, bottom) else counted
    counts = F.avg_pool2d(counted, window, stride, 0, False, True, 1)
    result = torch.zeros((*images.shape[:2], rows, columns), device=images.device, dtype=torch.float32)
    for count in torch.unique(counts).tolist():
        own = sum_windows(images, window, stride, around, 1 / count if count else 0.0)
        result = torch.where(counts == count, own, result)
    return result


@device_operation("ttnn.adaptive_pool2d", out=_spec, check=_check, scratch=_scratch, stages=_stages)
def _adaptive_pool(input: Lanes, size: Size, window: tuple[int, int], kind: str, lane_axes: int) -> Any:
    def pool(images: Lanes) -> Lanes:
        if kind == "avg" and images.numel() and fpu.is_emulated(images):
            return average_adaptively(images, window)
        widened = images.float()
        return F.adaptive_avg_pool2d(widened, window) if kind == "avg" else F.adaptive_max_pool2d(widened, window)

    return apply_pool(input, size, lane_axes, pool)


def _free_input(x: Tensor, result: Any, deallocate_input: bool) -> Any:
    if deallocate_input and x.is_sharded():  # TT-NN leaves others alone
        deallocate(x)
    return result


def _check_index_dtype(return_indices: bool, dtype: DataType | None) -> None:
    if return_indices and dtype not in (None, DataType.BFLOAT16):
        raise MeshError(
            f"return_indices needs a bfloat16 result, not {dtype}", expected="bfloat16", fix="Leave dtype out."
        )


@composite("ttnn.max_pool2d", golden=goldens.max_pool2d)
def max_pool2d(
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    memory_config: MemoryConfig | None,
    dram_slice_config: Op2DSliceConfig | None,
    applied_shard_scheme: object,
    deallocate_input: bool,
    return_indices: bool,
    dtype: DataType | None,
    output_layout: Layout | None,
) -> Any:
    """The largest value of every window."""
    _check_index_dtype(return_indices, dtype)
    size = (batch_size, input_h, input_w, channels)
    images = as_images(input_tensor, size)
    result = _max_pool(
        input=images,
        size=size,
        window=pair(kernel_size),
        stride=pair(stride),
        padding=borders(padding),
        dilation=pair(dilation),
        ceil_mode=ceil_mode,
        return_indices=return_indices,
        kind="max",
        memory_config=memory_config,
        applied_shard_scheme=applied_shard_scheme,
        slices=None if return_indices else _read_slices(images, dram_slice_config),
        out_dtype=DataType.BFLOAT16 if dtype is None else dtype,
        out_layout=Layout.ROW_MAJOR if output_layout is None else output_layout,
    )
    return _free_input(input_tensor, result, deallocate_input)


@composite("ttnn.avg_pool2d", golden=goldens.avg_pool2d)
def avg_pool2d(
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    memory_config: MemoryConfig | None,
    dram_slice_config: Op2DSliceConfig | None,
    applied_shard_scheme: object,
    compute_kernel_config: Any,
    deallocate_input: bool,
    dtype: DataType | None,
    output_layout: Layout | None,
) -> Any:
    """The mean of every window."""
    size = (batch_size, input_h, input_w, channels)
    images = as_images(input_tensor, size)
    result = _avg_pool(
        input=images,
        size=size,
        window=pair(kernel_size),
        stride=pair(stride),
        padding=borders(padding),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor_override=divisor_override,
        kind="avg",
        memory_config=memory_config,
        applied_shard_scheme=applied_shard_scheme,
        compute_kernel_config=compute_kernel_config,
        slices=_read_slices(images, dram_slice_config),
        out_dtype=DataType.BFLOAT16 if dtype is None else dtype,
        out_layout=Layout.ROW_MAJOR if output_layout is None else output_layout,
    )
    return _free_input(input_tensor, result, deallocate_input)


def _define_adaptive(name: str, kind: str, golden: Golden) -> None:
    @composite(name, golden=golden)
    def adaptive(
        input_tensor: Tensor,
        batch_size: int,
        input_h: int,
        input_w: int,
        channels: int,
        output_size: Sequence[int],
        memory_config: MemoryConfig | None,
        dram_slice_config: Op2DSliceConfig | None,
        applied_shard_scheme: object,
        deallocate_input: bool,
        compute_kernel_config: Any = None,
    ) -> Any:
        """A pool whose windows are chosen so that the result has output_size."""
        is_mean = kind == "avg" and pair(output_size) == (1, 1)
        size = (batch_size, input_h, input_w, channels)
        result = _adaptive_pool(
            input=as_images(input_tensor, size),
            size=size,
            window=pair(output_size),
            kind=kind,
            memory_config=memory_config,
            applied_shard_scheme=applied_shard_scheme,
            compute_kernel_config=compute_kernel_config,
            slices=None if is_mean else _read_slices(input_tensor, dram_slice_config),
            out_dtype=DataType.BFLOAT16,
            out_layout=Layout.ROW_MAJOR,
        )
        return _free_input(input_tensor, result, deallocate_input)


_define_adaptive("ttnn.adaptive_avg_pool2d", "avg", goldens.adaptive_avg_pool2d)
_define_adaptive("ttnn.adaptive_max_pool2d", "max", goldens.adaptive_max_pool2d)


@device_operation(
    "ttnn.global_avg_pool2d",
    min_rank=3,
    out=lambda call, inferred: [_global_spec(call, inferred[0][0])],
    stages=global_pool_stages,
)
def _mean(input_tensor: Lanes) -> Lanes:
    return fpu.mean(input_tensor.float(), (-3, -2), keepdim=True)


def _global_spec(call: Call, shape: Sequence[int]) -> TensorSpec:
    memory_config = call["memory_config"] or MemoryConfig(buffer_type=call.specs[0].memory_config.buffer_type)
    return TensorSpec(shape, call["dtype"] or call.specs[0].dtype, Layout.TILE, memory_config=memory_config)


@composite("ttnn.global_avg_pool2d", golden=goldens.global_avg_pool2d)
def global_avg_pool2d(input_tensor: Tensor, memory_config: MemoryConfig | None, dtype: DataType | None) -> Tensor:
    """The mean of every channel of [batch, height, width, channels]."""
    rank = len(input_tensor.shape)
    if not 2 <= rank <= 4:
        raise ValueError(f"global_avg_pool2d expects rank 2, 3, or 4 input, got rank {rank}")
    result: Tensor = _mean(input_tensor=input_tensor, memory_config=memory_config, dtype=dtype)
    return result
