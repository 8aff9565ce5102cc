"""Halos in a separate buffer: neighbor_pad_halo fills it, halo_scatter puts it around the shard."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import NotEmulatedError, one_of, require
from ttmesh.ccl.collectives.neighbor_pad import MODES, count_edge_bytes, pad_with_neighbours
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_groups
from ttmesh.ccl.planning.plan_traffic import add_loads
from ttmesh.fabric.fabric_config import Topology
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

HALO, SCATTER = "ttnn.experimental.neighbor_pad_halo", "ttnn.experimental.halo_scatter"
H, W = 2, 3  # of [B, T, H, W, C]


@collective(HALO)
def neighbor_pad_halo(
    input: Tensor,
    halo_buffer: Tensor,
    np_padding_h: int,
    np_padding_w: int,
    np_cluster_axis: int,
    np_num_links: int,
    np_topology: Topology,
    np_pad_dim2: int,
    np_pad2_left: int,
    np_pad2_right: int,
    np_pad2_cluster_axis: int,
    np_pad2_num_links: int,
    padding_mode: str = "zeros",
    memory_config: MemoryConfig | None = None,
    input_pad_h: int = 0,
    input_pad_w: int = 0,
    padded_output: Tensor | None = None,
    border_only: bool = False,
) -> Tensor:
    """The neighbours' edges above, below, left and right of every shard, row by row, in the given buffer."""
    mesh = mesh_of(HALO, [input, halo_buffer])
    if padded_output is not None or border_only:
        raise NotEmulatedError(
            "neighbor_pad_halo into a padded output is not emulated",
            expected="padded_output=None and border_only=False",
            fix="Call halo_scatter with the halo buffer.",
        )
    require(
        len(input.shape) == 5,
        f"NpHalo: Activation tensor must have 5 dimensions (BTHWC). got {len(input.shape)}",
        "[B, T, H, W, C]",
        "Reshape it to five dims.",
    )
    require(
        input.layout is Layout.ROW_MAJOR,
        "NpHalo: Activation tensor must be row-major.",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        padding_mode in MODES,
        f"NpHalo: Padding mode must be zeros or replicate. got {padding_mode}",
        one_of(MODES),
        "Pass one of these names.",
    )
    require(
        np_padding_h > 0,
        "NpHalo: np_padding_h must be > 0 (H-halo must be needed).",
        "1 or more",
        "Pass how many rows of a neighbour are needed.",
    )
    require(
        np_pad_dim2 > 0,
        "neighbor_pad_halo: 2D padding required (np_pad_dim2 must be > 0)",
        f"np_pad_dim2={W}",
        "Pass np_pad_dim2, or use ttnn.experimental.neighbor_pad_async.",
    )
    require(
        np_pad_dim2 == W,
        "NpHalo: requires 2D padding (H+W); np_pad_dim2 must be set.",
        f"np_pad_dim2={W}",
        "Pass np_pad_dim2, or use ttnn.experimental.neighbor_pad_async.",
    )
    require(
        np_pad2_left == np_pad2_right == np_padding_w,
        "NpHalo: W is padded by np_padding_w on both sides.",
        f"np_pad2_left=np_pad2_right={np_padding_w}",
        "Pass the same width for np_padding_w, np_pad2_left and np_pad2_right.",
    )
    require(
        halo_buffer.dtype == input.dtype,
        f"NpHalo: halo_buffer dtype ({halo_buffer.dtype}) must match input dtype ({input.dtype}).",
        "equal dtypes",
        "Allocate the buffer with the input's dtype.",
    )
    for axis in (np_cluster_axis, np_pad2_cluster_axis):
        check_axis(mesh, axis)
    check_common(mesh, None, np_pad2_num_links)
    options = {
        "axes": (np_cluster_axis, np_pad2_cluster_axis), "padding": (np_padding_h, np_padding_w),
        "inside": (input_pad_h, input_pad_w), "padding_mode": padding_mode, "topology": np_topology,
        "memory_config": memory_config, "mode": check_common(mesh, None, np_num_links),
    }  # fmt: skip
    result: Tensor = run(HALO, _decide_halo, [input], options, [halo_buffer])
    return result


@collective(SCATTER)
def halo_scatter(
    compact_buffer: Tensor,
    interior_src: Tensor,
    np_padding_h: int,
    np_padding_w: int,
    memory_config: MemoryConfig | None = None,
    border_only: bool = False,
) -> Tensor:
    """The shard surrounded by the edges of a halo buffer; `border_only` writes them into a shard that is already padded."""
    mesh_of(SCATTER, [compact_buffer, interior_src])
    require(
        compact_buffer.layout is Layout.ROW_MAJOR,
        "HaloScatter: compact_buffer must be row-major.",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        interior_src.layout is Layout.ROW_MAJOR,
        "HaloScatter: interior_src must be row-major.",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        compact_buffer.dtype == interior_src.dtype,
        f"HaloScatter: compact ({compact_buffer.dtype}) and interior_src ({interior_src.dtype}) dtype must match.",
        "equal dtypes",
        "Convert one with ttnn.typecast.",
    )
    require(
        len(interior_src.shape) == 5,
        f"HaloScatter: interior_src must be rank 5 [B,T,H,W,C]. got {len(interior_src.shape)}",
        "[B, T, H, W, C]",
        "Reshape it to five dims.",
    )
    require(
        np_padding_h > 0,
        "HaloScatter: np_padding_h must be > 0.",
        "1 or more",
        "Pass the padding that the buffer was filled with.",
    )
    options = {
        "padding": (np_padding_h, np_padding_w), "border_only": border_only, "memory_config": memory_config,
        "mode": "local",
    }  # fmt: skip
    outputs = [interior_src] if border_only else []
    result: Tensor = run(SCATTER, _decide_scatter, [interior_src, compact_buffer], options, outputs)
    return result


def _decide_halo(request: Request) -> Decision:
    (rows, columns), (skip_h, skip_w) = request["padding"], request["inside"]
    groups_h, groups_w = (find_groups(request, axis) for axis in request["axes"])
    batch, frames, height, width, channels = request.tensor.shape
    height, width = height - 2 * skip_h, width - 2 * skip_w
    outer, zeros, axes = batch * frames, request["padding_mode"] == "zeros", request.mesh.shape.dims()
    buffer = request.outputs[0]
    assert buffer is not None, "the caller passes the buffer"
    sticks = outer * (2 * rows * width + 2 * columns * (height + 2 * rows))
    require(
        buffer.shape[-1] == channels and buffer.shape[-2] >= sticks,
        f"NpHalo: halo_buffer holds {buffer.shape[-2]} pages but the [Htop|Hbot|Wleft|Wright] sections need {sticks} "
        f"(outer={outer}, H_dev={height}, W_dev={width}, pH={rows}, pad2_left={columns}, pad2_right={columns}).",
        f"{sticks} pages of {channels} channels or more",
        "Allocate a larger halo_buffer.",
    )

    def compute(lanes: torch.Tensor) -> list[torch.Tensor]:
        inside = lanes.narrow(axes + H, skip_h, height).narrow(axes + W, skip_w, width)
        padded = pad_with_neighbours(groups_h, inside, H, rows, rows, zeros=zeros)
        padded = pad_with_neighbours(groups_w, padded, W, columns, columns, zeros=zeros)
        sections = [section.flatten(axes, -2) for section in _find_sections(padded, rows, columns, axes)]
        unused = buffer.shape[-2] - sticks
        if unused:
            sections.append(sections[0].new_zeros(*sections[0].shape[:axes], unused, channels))
        return [torch.cat(sections, -2).reshape(*sections[0].shape[:axes], *buffer.shape)]

    stick = channels * request.tensor.spec.packed_size_bytes // max(request.tensor.spec.shape.volume(), 1)
    loads = add_loads(
        [
            count_edge_bytes(groups_h, outer * width * stick, rows, rows),
            count_edge_bytes(groups_w, outer * (height + 2 * rows) * stick, columns, columns),
        ]
    )
    return Decision((buffer.spec,), compute, loads, request.tensor.tensor_topology())


def _find_sections(padded: torch.Tensor, rows: int, columns: int, axes: int) -> list[torch.Tensor]:
    """Views of a padded shard: above and below without the corners, left and right with them."""
    height, width = padded.shape[axes + H] - 2 * rows, padded.shape[axes + W] - 2 * columns
    middle = padded.narrow(axes + W, columns, width)
    return [
        middle.narrow(axes + H, 0, rows),
        middle.narrow(axes + H, rows + height, rows),
        padded.narrow(axes + W, 0, columns),
        padded.narrow(axes + W, columns + width, columns),
    ]


def _decide_scatter(request: Request) -> Decision:
    (rows, columns), axes = request["padding"], request.mesh.shape.dims()
    shape = [*request.tensor.shape]
    if not request["border_only"]:
        shape[H] += 2 * rows
        shape[W] += 2 * columns

    def compute(shard: torch.Tensor, halo: torch.Tensor) -> list[torch.Tensor]:
        mesh = [max(a, b) for a, b in zip(shard.shape[:axes], halo.shape[:axes], strict=True)]
        padded = shard.new_empty(*mesh, *shape)
        if request["border_only"]:
            padded.copy_(shard)
        else:
            inside = padded.narrow(axes + H, rows, shard.shape[axes + H])
            inside.narrow(axes + W, columns, shard.shape[axes + W]).copy_(shard)
        sticks, offset = halo.flatten(axes, -2), 0
        for section in _find_sections(padded, rows, columns, axes):
            count = section.shape[axes:-1].numel()
            section.copy_(sticks.narrow(axes, offset, count).reshape(*halo.shape[:axes], *section.shape[axes:]))
            offset += count
        return [padded]

    return Decision((request.result_spec(shape),), compute, {}, request.tensor.tensor_topology())
