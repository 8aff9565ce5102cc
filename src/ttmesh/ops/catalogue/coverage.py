"""Which TT-NN names ttmesh has: operations, aliases, plain functions, and the names that are not emulated, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ttmesh.ops.catalogue.definition import Entry
from ttmesh.ops.catalogue.signatures import names, registered_names

OPERATION, ALIAS, FUNCTION, MISSING = "operation", "same as", "function", "not emulated"


def _map_reason(reason: str, names: str) -> dict[str, str]:
    return {f"ttnn.experimental.{name}": reason for name in names.split()}


# Why a name is not emulated, if there is a particular reason.
REASONS = {
    "ttnn.test_hang_device_operation": "It hangs the device on purpose, to test TT-NN's own time-outs.",
    "ttnn.transformer.exp_ring_joint_scaled_dot_product_attention": (
        "An experimental form of ring_joint_scaled_dot_product_attention: not written yet."
    ),
    **_map_reason(
        "The Python functions of tt-metal's moe_compute_utils run here; these compiled forms of them are not written yet.",
        "add_shared_expert_weights get_weight_core_shard_maps get_weight_mem_configs prepare_w0_w1_tensor_for_moe_compute "
        "prepare_w0_w1_tensor_with_bias prepare_w2_tensor_for_moe_compute prepare_w2_tensor_with_bias "
        "quantize_weights_via_host",
    ),
    **_map_reason(
        "Blackhole's programmable DRAM cores, which prefetch tensors, are not emulated; ttnn.dram_prefetcher is.",
        "create_global_circular_buffer_for_matmul_1d create_global_circular_buffer_for_tensor_prefetcher "
        "queue_tensor_prefetcher_request start_tensor_prefetcher stop_tensor_prefetcher "
        "tensor_prefetcher_block_count_for_matmul_1d test_dram_prefetcher_consumer test_dram_prefetcher_validator "
        "wait_for_cq_on_tensor_prefetcher",
    ),
    **_map_reason(
        "Services on cores that pass tensors from one process to another are not written yet.",
        "deepseek_prefill.inbound_socket_service_sync deepseek_prefill.outbound_socket_service_sync",
    ),
    **_map_reason(
        "indexer_score_dsa over a ring of chips: not written yet.",
        "ring_indexer_score_dsa",
    ),
}

# Operations without a case in the matrix of `make test-ops`, by how they are tested instead.
UNCOMPARED = {
    "Compared with torch over algorithms, modes and meshes by tests/ccl.": (
        "all_broadcast all_gather all_reduce all_to_all_combine all_to_all_dispatch broadcast fused_rms_minimal "
        "mesh_partition point_to_point reduce_scatter reduce_to_root "
        "transformer.ring_joint_scaled_dot_product_attention transformer.ring_mla "
        "experimental.deepseek_prefill.combine experimental.deepseek_prefill.dispatch "
        "experimental.deepseek_prefill.moe_padding_config experimental.deepseek_prefill.offset_cumsum"
    ),
    "They move values between host, device and files; compared by tests/tensor.": (
        "allocate_tensor_on_device allocate_tensor_on_host as_tensor copy_device_to_host_tensor "
        "copy_host_to_device_tensor copy_host_to_device_tensor_partial deallocate dump_tensor from_device from_torch "
        "load_tensor reallocate to_device to_dtype to_layout to_memory_config to_torch"
    ),
    "Random or uninitialized values; tests/ops/creation/test_creation.py tests shapes, seeds and distributions.": (
        "bernoulli empty empty_like from_buffer manual_seed rand randn uniform"
    ),
    "They take or return a ComplexTensor, for which the matrix has no format; tt-metal's own tests of them pass.": (
        "angle angle_bw complex_tensor conj conj_bw imag imag_bw is_imag is_real polar polar_bw real real_bw"
    ),
    "Its result is a placeholder, as in TT-NN; tests/ops/matmul/test_prefetching.py tests checks and memory.": (
        "dram_prefetcher"
    ),
    "The second name of an operation that is compared.": "divide",
    "Without scores it is deepseek_moe_fast_reduce_nc, which is compared.": (
        "experimental.deepseek_moe_fast_reduce_nc_fused"
    ),
    "The keys that a row sees depend on its device's position; compared by tests/ops/attention/test_indexers.py.": (
        "experimental.indexer_score_dsa experimental.indexer_score_msa"
    ),
    "Its rows hold bytes of three formats; tests/ops/attention/test_indexers.py tests the bytes.": (
        "experimental.deepseek_prefill.pack_scaled_fp8_kv_cache"
    ),
    "They write into given tensors with one tile per core; compared by tests/ops/test_tile_gates.py.": (
        "experimental.deepseek.moe.deepseek_moe_gate experimental.deepseek.moe.generalized_moe_gate"
    ),
    "It runs the caller's kernels; tests/programs/test_descriptors.py runs it.": "generic_op",
    "Not compared by ttmesh's tests yet; tt-metal's tests or the text demo run them.": (
        "index_fill_new interleaved_to_sharded_partial moe_expert_token_remap moe_routing_remap "
        "pearson_correlation_coefficient sampling sharded_to_interleaved_partial"
    ),
}


class Row(NamedTuple):
    """The status of one name."""

    name: str
    status: str
    remark: str


def list_rows(catalogue: Mapping[str, Entry], describe: Callable[[str], str | None]) -> list[Row]:
    """Every TT-NN operation that has a signature, in alphabetical order.

    Args:
        describe: what a function of ttmesh.ttnn that is not in the catalogue does; None if it is not emulated.
    """
    return [_make_row(name, catalogue, describe) for name in sorted({*names(), *catalogue})]


def _make_row(name: str, catalogue: Mapping[str, Entry], describe: Callable[[str], str | None]) -> Row:
    entry = catalogue.get(name)
    if entry is not None and entry.same_as is not None:
        return Row(name, ALIAS, f"ttnn.{entry.same_as}")
    if entry is not None:
        return Row(name, OPERATION, first_line(entry.function))
    remark = describe(name)
    return Row(name, MISSING, REASONS.get(name, "not written yet")) if remark is None else Row(name, FUNCTION, remark)


def first_line(function: object) -> str:
    """The first line of a docstring."""
    return (function.__doc__ or "").strip().partition("\n")[0]


def format_summary(found: Iterable[Row]) -> str:
    """One line of counts, of the registered operations and of all."""
    rows = list(found)
    registered = set(registered_names())
    counts = Counter(row.status for row in rows if row.name in registered)
    emulated = len(registered) - counts[MISSING]
    others = [row for row in rows if row.name not in registered]
    other_emulated = sum(row.status != MISSING for row in others)
    return (
        f"{emulated} of {len(registered)} operations that TT-NN 0.81 registers ({counts[OPERATION]} operations, "
        f"{counts[ALIAS]} aliases, {counts[FUNCTION]} functions), and {other_emulated} of {len(others)} other names."
    )


def format_coverage_page(found: Iterable[Row]) -> str:
    """The page docs/coverage.md."""
    everything = list(found)
    lines = [
        "# Coverage",
        "",
        "Every TT-NN operation with a known signature. Generated by `ttmesh ops --markdown`;",
        "`ttmesh ops PATTERN` prints a part of it.",
        "",
        format_summary(everything),
        "",
        "| name | status | what |",
        "|---|---|---|",
    ]
    escape = str.maketrans({"|": "\\|"})
    lines += [f"| `{row.name}` | {row.status} | {row.remark.translate(escape)} |" for row in everything]
    lines += ["", "## Without a case in the matrix of `make test-ops`", "", "| why | which |", "|---|---|"]
    lines += [f"| {why} | {', '.join(which.split())} |" for why, which in UNCOMPARED.items()]
    return "\n".join([*lines, ""])


def list_uncompared_operations() -> set[str]:
    """The full names of the operations without a case in the matrix."""
    return {f"ttnn.{name}" for which in UNCOMPARED.values() for name in which.split()}
