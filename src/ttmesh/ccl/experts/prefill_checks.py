"""What TT-NN refuses of deepseek_prefill's dispatch and combine, in its words and order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttmesh.base.dtypes import Arch, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.fabric.fabric_config import Topology, is_2d
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.tensor.tensor import Tensor

INTEGERS = (DataType.INT32, DataType.UINT32)
MOST_LINKS = 4
SCALED = 128  # numbers that share a scale


def _print_dtype(tensor: Tensor) -> str:
    return f"DataType::{tensor.dtype.name}"


def check_links_and_axis(axis: int | None, num_links: int, topology: Topology) -> None:
    """Raise for axes, links and topologies that the kernels were not tested with."""
    wrong = f"cluster_axis must be 0 (current value: {axis}). Other values are not tested."
    require(axis in (None, 0), wrong, "0", "Exchange tokens along the first axis of the mesh.")
    wrong = f"num_links must be between 1 and 4 (current value: {num_links})."
    require(1 <= num_links <= MOST_LINKS, wrong, f"1 to {MOST_LINKS}", "Change num_links.")
    require(
        topology in (Topology.Linear, Topology.Ring),
        "topology must be Linear or Ring. 2D topologies are not supported.",
        "Linear or Ring",
        "Change topology.",
    )


def check_fabric_axis(name: str, axis: int | None) -> None:
    """Raise if no axis is named for a fabric of two dimensions."""
    wrong = f"FABRIC_2D {name} requires cluster_axis 0 or 1; got 2"
    require(axis is not None or not is_2d(get_fabric_config()), wrong, "0", "Pass cluster_axis.")


def check_sender_cores(mesh: MeshDevice, num_links: int, workers: int) -> None:
    """Raise if a row of cores is too short for the cores that send tokens and their workers."""
    columns, needed = mesh.compute_with_storage_grid_size().x, num_links * (workers + 1)
    require(
        needed <= columns,
        f"Same-row has only {columns} cores for {num_links} senders \u2014 need {workers + 1} cores per sender (>= {needed} "
        "required)",
        f"at most {columns} cores",
        "Lower num_links or num_workers_per_sender.",
    )


def check_dispatch(
    mesh: MeshDevice, tensors: Sequence[Tensor], padding: Tensor | None, scales: Tensor | None, options: dict[str, Any]
) -> None:
    """Raise TT-NN's errors of dispatch's tensors."""
    tokens, indices, offsets, table = tensors
    rows = Layout.ROW_MAJOR
    require_layout(indices, rows, "Indices tensor must be ROW_MAJOR layout")
    require_layout(offsets, rows, "Expert offsets tensor must be ROW_MAJOR layout")
    require_layout(table, rows, "Expert dispatch table tensor must be ROW_MAJOR layout")
    formats = (DataType.BFLOAT16, DataType.FP8_E4M3)
    require_dtype(tokens, formats, f"Input tensor must be BFLOAT16 or FP8_E4M3, got {_print_dtype(tokens)}")
    wrong = f"Indices tensor must be UINT16 (matching moe_grouped_topk output), got {_print_dtype(indices)}"
    require_dtype(indices, DataType.UINT16, wrong)
    require_dtype(offsets, INTEGERS, f"Expert offsets tensor must be INT32 or UINT32, got {_print_dtype(offsets)}")
    require_dtype(table, DataType.INT32, f"Expert dispatch table tensor must be INT32, got {_print_dtype(table)}")
    is_fp8 = options["fp8_output"]
    require(
        not is_fp8 or mesh.arch() is not Arch.WORMHOLE_B0,
        "FP8_E4M3 is not supported on arch wormhole_b0",
        "a Blackhole system",
        "Leave fp8_output out.",
    )
    result = DataType.FP8_E4M3 if is_fp8 else DataType.BFLOAT16
    require(
        tokens.layout is not rows or tokens.dtype is result,
        f"Row-major dispatch is a byte copy: input dtype ({_print_dtype(tokens)}) must match output dtype (DataType::"
        f"{result.name}). Use fp8 input for fp8 output, bf16 input for bf16 output, or TILE layout to convert.",
        result.name,
        "Convert it with ttnn.to_layout.",
    )
    wrong = "Output memory config must be DRAM interleaved, not sharded"
    require(not options["memory_config"].is_sharded(), wrong, "DRAM", "Pass ttnn.DRAM_MEMORY_CONFIG.")
    if padding is not None:
        require_layout(padding, rows, "padding_config tensor must be ROW_MAJOR layout")
        require_dtype(padding, INTEGERS, f"padding_config tensor must be UINT32 or INT32, got {_print_dtype(padding)}")
        width = padding.shape[-1]
        wrong = f"padding_config last dim must be 2 ([local_real_tokens, pad_side]), got {width}"
        require(width == 2, wrong, "2 numbers", "Make it with moe_padding_config.")
    _check_scales(tokens, scales, options)


def _check_scales(tokens: Tensor, scales: Tensor | None, options: dict[str, Any]) -> None:
    if not options["fp8_scaled_input"]:
        wrong = "scales_tensor was provided but fp8_scaled_input is false; pass fp8_scaled_input=True to use scales"
        require(scales is None, wrong, "fp8_scaled_input=True", "Pass it, or leave out the scales.")
        return
    wrong = "fp8_scaled_input requires a scales_tensor (per_token_cast_to_fp8 scales)"
    require(scales is not None, wrong, "scales_tensor=", "Pass the scales of per_token_cast_to_fp8.")
    assert scales is not None, "required above"
    require_layout(scales, Layout.ROW_MAJOR, "scales tensor must be ROW_MAJOR layout")
    require_dtype(scales, DataType.FLOAT32, f"scales tensor must be FLOAT32, got {_print_dtype(scales)}")
    require(
        tokens.layout is Layout.ROW_MAJOR and tokens.dtype is DataType.FP8_E4M3,
        "fp8_scaled_input requires a fp8 (FP8_E4M3) ROW_MAJOR input (the per_token_cast_to_fp8 compression path)",
        "FP8_E4M3 rows",
        "Pass the tokens of per_token_cast_to_fp8.",
    )
    count, length, hidden = scales.shape[-1], options["metadata_len"], tokens.shape[-1]
    wrong = f"metadata_len ({length}) must equal 3 routing fields + scales last dim ({count}) = {3 + count}"
    require(length == 3 + count, wrong, str(3 + count), "Change metadata_len.")
    held, expected = scales.shape.volume() // count, tokens.shape.volume() // hidden
    wrong = f"scales row count ({held}) must match input token count ({expected})"
    require(held == expected, wrong, f"{expected} rows", "Pass the scales of these tokens.")
    wrong = (
        f"fp8_scaled_input requires input hidden dim ({hidden}) divisible by {SCALED} with one fp32 scale per block; got "
        f"{count} scale words (expected {hidden // SCALED})"
    )
    require(hidden % SCALED == 0 and count == hidden // SCALED, wrong, f"{hidden // SCALED} scales", "Pad the tokens.")


def check_combine(mesh: MeshDevice, tensors: Sequence[Tensor], options: dict[str, Any]) -> None:
    """Raise TT-NN's errors of combine's tensors."""
    buffer, metadata, counts, regions = tensors
    rows = Layout.ROW_MAJOR
    require_layout(metadata, rows, "Dispatched metadata must be ROW_MAJOR layout")
    require_layout(counts, rows, "Experts token counter must be ROW_MAJOR layout")
    require_layout(regions, rows, "Expert region offsets must be ROW_MAJOR layout")
    packed = buffer.dtype is DataType.BFLOAT8_B and buffer.layout is Layout.TILE
    wrong = f"Dispatched buffer must be BFLOAT16 or BFLOAT8_B with TILE layout, got {_print_dtype(buffer)}"
    require(packed or buffer.dtype is DataType.BFLOAT16, wrong, "bfloat16", "Convert it with ttnn.typecast.")
    require_dtype(metadata, DataType.INT32, f"Dispatched metadata must be INT32, got {_print_dtype(metadata)}")
    require_dtype(counts, INTEGERS, f"Experts token counter must be INT32 or UINT32, got {_print_dtype(counts)}")
    require_dtype(regions, INTEGERS, f"Expert region offsets must be INT32 or UINT32, got {_print_dtype(regions)}")
    require(
        tuple(regions.shape) == tuple(counts.shape),
        f"expert_region_offsets shape {regions.shape!r} must match expert_token_counts shape {counts.shape!r}",
        f"{counts.shape!r}",
        "Pass both results of offset_cumsum.",
    )
    wrong = "Output memory config must be interleaved (L1 or DRAM), not sharded"
    require(not options["memory_config"].is_sharded(), wrong, "interleaved memory", "Pass ttnn.DRAM_MEMORY_CONFIG.")
    require(
        not options["fp8_output"] or mesh.arch() is Arch.BLACKHOLE,
        f"FP8_E4M3 is not supported on arch {mesh.arch().name.lower()}",
        "a Blackhole system",
        "Leave use_fp8_combine out.",
    )
    wrong = (
        "use_fp8_combine=true requires TILE-layout dispatched buffer; only the TILE path retargets the untilize CB to "
    )
    require(
        not options["fp8_output"] or buffer.layout is Layout.TILE,
        f"{wrong}Fp8_e4m3 (got layout Layout::{buffer.layout.name})",
        "TILE_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        buffer.shape[0] == metadata.shape[0] == counts.shape[0],
        "First dimension (per_device_batch) must match across all input tensors",
        "equal first dims",
        "Reshape them.",
    )
    held, given = buffer.shape[2], metadata.shape[2]
    wrong = f"Flat buffer dim must match: dispatched[2]={held} vs metadata[2]={given}"
    require(held == given, wrong, f"{held} rows", "Pass the metadata of this buffer.")
    experts, per_chip = counts.shape[-1], options["experts"]
    wrong = f"counter last dim (num_routed_experts={experts}) must be divisible by experts_per_chip={per_chip}"
    require(per_chip > 0 and experts % per_chip == 0, wrong, f"a divisor of {experts}", "Change experts_per_chip.")
