"""Neighbours' edges in a buffer of their own: neighbor_pad_halo fills it, halo_scatter puts it around the part."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import NotEmulatedError, one_of, require
from ttmesh.ccl.collectives.neighbor_pad import MODES, edge_loads, with_edges
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_groups
from ttmesh.ccl.planning.plan_traffic import together
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
    """The edges above, below, left and right of every part, row by row, in the given buffer."""
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
        np_pad_dim2 == W,
        "NpHalo: requires 2D padding (H+W); np_pad_dim2 must be set.",
        f"np_pad_dim2={W}",
        "Pass np_pad_dim2, or use ttnn.experimental.neighbor_pad_async.",
    )
    require(
        np_pad2_left == np_pad2_right == np_padding_w,
        "NpHalo: W is padded by np_padding_w on both sides.",
        f"np_pad2_left=np_pad2_right={np_padding_w}",
        "Pass the same width three times.",
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
    result: Tensor = run(HALO, _halo, [input], options, [halo_buffer])
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
    """The part with the edges of a halo buffer around it; `border_only` writes them into a part that has room for them."""
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
    result: Tensor = run(SCATTER, _scatter, [interior_src, compact_buffer], options, outputs)
    return result


def _halo(request: Request) -> Decision:
    (rows, columns), (skip_h, skip_w) = request["padding"], request["inside"]
    where_h, where_w = (find_groups(request, axis) for axis in request["axes"])
    batch, frames, high, wide, channels = request.tensor.shape
    high, wide = high - 2 * skip_h, wide - 2 * skip_w
    outer, zeros, axes = batch * frames, request["padding_mode"] == "zeros", request.mesh.shape.dims()
    buffer = request.outputs[0]
    assert buffer is not None, "the buffer is given"
    sticks = outer * (2 * rows * wide + 2 * columns * (high + 2 * rows))
    require(
        buffer.shape[-1] == channels and buffer.shape[-2] >= sticks,
        f"NpHalo: halo_buffer holds {buffer.shape[-2]} pages but the [Htop|Hbot|Wleft|Wright] sections need {sticks} "
        f"(outer={outer}, H_dev={high}, W_dev={wide}, pH={rows}, pad2_left={columns}, pad2_right={columns}).",
        f"{sticks} pages of {channels} channels or more",
        "Allocate a larger halo_buffer.",
    )

    def compute(lanes: torch.Tensor) -> list[torch.Tensor]:
        inside = lanes.narrow(axes + H, skip_h, high).narrow(axes + W, skip_w, wide)
        padded = with_edges(where_h, inside, H, rows, rows, zeros=zeros)
        padded = with_edges(where_w, padded, W, columns, columns, zeros=zeros)
        sections = [part.flatten(axes, -2) for part in _sections(padded, rows, columns, axes)]
        rest = buffer.shape[-2] - sticks
        if rest:
            sections.append(sections[0].new_zeros(*sections[0].shape[:axes], rest, channels))
        return [torch.cat(sections, -2).reshape(*sections[0].shape[:axes], *buffer.shape)]

    stick = channels * request.tensor.spec.packed_size_bytes // max(request.tensor.spec.shape.volume(), 1)
    loads = together(
        [
            edge_loads(where_h, outer * wide * stick, rows, rows),
            edge_loads(where_w, outer * (high + 2 * rows) * stick, columns, columns),
        ]
    )
    return Decision((buffer.spec,), compute, loads, request.tensor.tensor_topology())


def _sections(padded: torch.Tensor, rows: int, columns: int, axes: int) -> list[torch.Tensor]:
    """Views of a padded part: above and below without the corners, left and right with them."""
    high, wide = padded.shape[axes + H] - 2 * rows, padded.shape[axes + W] - 2 * columns
    middle = padded.narrow(axes + W, columns, wide)
    return [
        middle.narrow(axes + H, 0, rows),
        middle.narrow(axes + H, rows + high, rows),
        padded.narrow(axes + W, 0, columns),
        padded.narrow(axes + W, columns + wide, columns),
    ]


def _scatter(request: Request) -> Decision:
    (rows, columns), axes = request["padding"], request.mesh.shape.dims()
    shape = [*request.tensor.shape]
    if not request["border_only"]:
        shape[H] += 2 * rows
        shape[W] += 2 * columns

    def compute(part: torch.Tensor, halo: torch.Tensor) -> list[torch.Tensor]:
        mesh = [max(a, b) for a, b in zip(part.shape[:axes], halo.shape[:axes], strict=True)]
        padded = part.new_empty(*mesh, *shape)
        if request["border_only"]:
            padded.copy_(part)
        else:
            inside = padded.narrow(axes + H, rows, part.shape[axes + H])
            inside.narrow(axes + W, columns, part.shape[axes + W]).copy_(part)
        sticks, at = halo.flatten(axes, -2), 0
        for section in _sections(padded, rows, columns, axes):
            count = section.shape[axes:-1].numel()
            section.copy_(sticks.narrow(axes, at, count).reshape(*halo.shape[:axes], *section.shape[axes:]))
            at += count
        return [padded]

    return Decision((request.result_spec(shape),), compute, {}, request.tensor.tensor_topology())
