"""Slices of a convolution whose input is in DRAM: along which dim, how many, and the L1 that one needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import MeshError
from ttmesh.ops.configs.conv_config import Op2DSliceConfig, Op2DSliceType
from ttmesh.ops.conv.conv_sharding import L1_STEP, TILE, Window
from ttmesh.tensor.spec.shard_config import div_up

HEIGHT_DIM, WIDTH_DIM = 0, 1
NAMES = ("height", "width")
NARROW = 200  # tiled images narrower than this are sliced along their height
TALL = 3  # row-major images are sliced along their height if it is more than so many widths


@dataclass(frozen=True)
class Images:
    """The images of a convolution, and how its window moves over them."""

    batch: int
    size: tuple[int, int]
    out: tuple[int, int]
    padding: tuple[int, int, int, int]
    stride: tuple[int, int]
    transposed: bool = False


def slice_window(window: Window, images: Images, dim: int, start: int, end: int, width_step: int) -> Window:
    """The window that gives the outputs from `start` to `end` of one dim, with the input's borders that they read.

    Args:
        width_step: rows of a slice are as wide as a multiple of this.
    """
    sizes, borders, outs = [], [], []
    for each in (HEIGHT_DIM, WIDTH_DIM):
        first, last = (start, end) if each == dim else (0, images.out[each])
        size, before, after = _read_slice(window, images, each, first, last)
        sizes.append(size)
        borders.append(before + after)
        outs.append(last - first)
    if tuple(sizes) != images.size:
        extra = -outs[WIDTH_DIM] % width_step
        outs[WIDTH_DIM] += extra
        borders[WIDTH_DIM] += extra * images.stride[1]
    height, width = sizes
    reach = [d * (k - 1) for d, k in zip(window.dilation, window.kernel, strict=True)]
    if images.transposed:
        padded = (outs[0] + reach[0], outs[1] + reach[1])
    else:
        padded = (height + borders[0], width + borders[1])
    return replace(
        window,
        rows=images.batch * outs[0] * outs[1],
        input_rows=images.batch * height * width,
        out_size=(outs[0], outs[1]),
        padded_size=padded,
        channel_step=window.channel_step if tuple(sizes) == images.size else L1_STEP,
    )


def _read_slice(window: Window, images: Images, dim: int, start: int, end: int) -> tuple[int, int, int]:
    """How many rows or columns a slice reads, and its padding on both sides."""
    size, stride = images.size[dim], images.stride[dim]
    before, after = images.padding[2 * dim : 2 * dim + 2]
    reach = window.dilation[dim] * (window.kernel[dim] - 1)
    if images.transposed:
        spread = reach - before
        first, last = div_up(start - spread, stride), (end - spread + reach - 1) // stride + 1
    else:
        first, last = start * stride - before, (end - 1) * stride - before + reach + 1
    before = before if start == 0 else max(0, -first)
    after = after if end == images.out[dim] else max(0, last - size)
    first = 0 if start == 0 else max(0, first)
    last = size if end == images.out[dim] else min(size, last)
    return max(last - first, 1), before, after


def list_slices(length: int, count: int, row_step: int) -> list[tuple[int, int]]:
    """The first two slices and the last; those between are like the second or the last."""
    whole, rest = divmod(div_up(length, row_step), count)
    starts = [min((whole * i + min(i, rest)) * row_step, length) for i in range(count + 1)]
    pairs = [(starts[i], starts[i + 1]) for i in sorted({0, min(1, count - 1), count - 1})]
    return [pair for pair in pairs if pair[0] < pair[1]]


def guess_dim(size: tuple[int, int], layout: Layout) -> int:
    """The dim that TT-NN tries first."""
    height, width = size
    if layout is Layout.ROW_MAJOR:
        return HEIGHT_DIM if height > TALL * width else WIDTH_DIM
    return HEIGHT_DIM if width < NARROW or height > width else WIDTH_DIM


def choose_slices(
    window: Window,
    images: Images,
    asked: Op2DSliceConfig | None,
    layout: Layout,
    needs: Callable[[Window], int],
    free: int,
) -> tuple[Window, int]:
    """The largest slice, and how many there are: those asked for, or the fewest that fit.

    Args:
        layout: of the result; slices of tiles along the width are whole tiles.
        needs: bytes of L1 per core of a slice.
        free: bytes of L1 per core that nothing holds.
    """
    width_step = TILE if layout is Layout.TILE else 1
    guessed = guess_dim(images.size, layout)
    dims = [guessed, 1 - guessed] if asked is None else [int(asked.slice_type is Op2DSliceType.DRAM_WIDTH)]
    for dim in dims:
        row_step = width_step if dim == WIDTH_DIM else 1
        most = div_up(images.out[dim], row_step)

        def windows(count: int, dim: int = dim, row_step: int = row_step) -> list[Window]:
            pairs = list_slices(images.out[dim], count, row_step)
            return [slice_window(window, images, dim, start, end, width_step) for start, end in pairs]

        if asked is not None and asked.num_slices:
            if asked.num_slices > most:
                raise MeshError(
                    f"Number of slices ({asked.num_slices}) exceeds the maximum allowed ({most}) for the given output "
                    "dimension and alignment.",
                    expected=f"at most {most} slices of the {NAMES[dim]} {images.out[dim]}",
                    fix="Ask for fewer slices, or for 0 to let the operation choose.",
                )
            return windows(asked.num_slices)[0], asked.num_slices
        for count in range(1, most + 1):
            slices = windows(count)
            if all(needs(each) <= free for each in slices):
                return slices[0], count
    raise MeshError(
        f"DRAM Auto slice could not find valid slice configuration. Tried up to {most} slices for {NAMES[dim]}-slicing "
        f"on output dimension {images.out[dim]}. Available L1: {free} bytes. "
        "Operation requires more memory than available even with maximum slicing.",
        expected=f"at most {free} B per core, not {min(needs(each) for each in slices)}",
        fix="Choose another shard_layout or a smaller act_block_h_override.",
    )
