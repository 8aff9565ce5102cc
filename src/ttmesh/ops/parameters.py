"""What becomes of every parameter that a lane function or composite does not name itself; nothing is ignored silently."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ttmesh.ops.entry import Entry, OpFunction


class Tag(NamedTuple):
    """Used by the machinery or by an operation's rules, checked and then done with, or without effect here."""

    kind: Literal["used", "checked", "no effect"]
    reason: str


def _none(reason: str) -> Tag:
    return Tag("no effect", reason)


CORES = "Which cores compute is not emulated: values, addresses and program counts do not depend on it."
PRECISION = (
    "How exactly the chip's vector unit approximates a function; here it is computed in float32 and rounded once."
)

COMMON = {
    "activation": Tag("used", "Applied to the result before it is rounded."),
    "activations": Tag("used", "Applied to the result before it is rounded."),
    "compute_kernel_config": _none(
        "math_fidelity, fp32_dest_acc_en, packer_l1_acc, dst_full_sync_en and math_approx_mode choose how many bits the "
        "chip's engines keep on the way. ttmesh accumulates in float32 and rounds once to the output format, which is at "
        "least as exact as HiFi4 with fp32_dest_acc_en=True; a lower fidelity gives the same numbers here."
    ),
    "core_grid": _none(CORES),
    "dtype": Tag("used", "The format of the result."),
    "fast_and_approximate_mode": _none(PRECISION),
    "layout": Tag("used", "The layout of the result."),
    "memory_config": Tag("used", "Where the result is allocated."),
    "numeric_stable": _none("The largest element is always subtracted first; no input overflows."),
    "out": Tag("used", "The result is written into it."),
    "output_dtype": Tag("used", "The format of the result."),
    "output_layout": Tag("used", "The layout of the result."),
    "output_memory_config": Tag("used", "Where the result is allocated."),
    "output_tile": Tag("used", "The tile of the result."),
    "program_config": Tag("used", "Sizes of circular buffers and the layout of sharded results come from it."),
    "sub_core_grids": _none(CORES),
    "sub_device_id": _none(
        "Programs run in queue order whichever sub-device they name; loads and stalls are not emulated."
    ),
    "subdevice_id": _none(
        "Programs run in queue order whichever sub-device they name; loads and stalls are not emulated."
    ),
    "use_low_perf": _none(CORES),
    "use_multicore": _none(CORES),
}

SAME_ANYWHERE = _none("TT-NN hands the part itself back, wherever it lies.")
DEPRECATED = _none("Deprecated in TT-NN, which ignores it as well.")
PREFETCH = _none("Where prefetched weights pass through; weights are read where they lie.")
PADDING = _none("The padding of tiles holds no values here; it is written when bytes are asked for.")

PER_OPERATION: dict[str, dict[str, Tag]] = {
    "ttnn.conj_bw": {"input_tensor": _none("The gradient of a conjugate does not depend on the input.")},
    "ttnn.real": {"memory_config": SAME_ANYWHERE},
    "ttnn.imag": {"memory_config": SAME_ANYWHERE},
    "ttnn.div": {"dtype": Tag("checked", "TT-NN refuses wrong ones for integers and ignores it for floats.")},
    "ttnn.sigmoid": {
        "vector_mode": _none("Chooses the faces of a tile the vector unit visits; every element is computed."),
        "mode": _none(PRECISION),
    },
    **{
        f"ttnn.{name}": {"dim": Tag("checked", "Only the last dim is split, as in TT-NN.")}
        for name in ("glu", "reglu", "geglu", "swiglu")
    },
    **{f"ttnn.{name}": {"correction": DEPRECATED} for name in ("sum", "mean", "max", "min")},
    "ttnn.permute": {"pad_value": PADDING},
    "ttnn.transpose": {"pad_value": PADDING},
    "ttnn.slice": {"pad_value": PADDING},
    "ttnn.experimental.padded_slice": {"pad_value": PADDING},
    "ttnn.repeat": {"implementation": _none("Chooses between kernels with equal results.")},
    "ttnn.sort": {"stable": Tag("checked", "TT-NN refuses stable=True.")},
    "ttnn.reshape": {
        "pad_value": PADDING,
        "reshape_tile_mode": _none("Whether TT-NN keeps its index map between calls; here there is none."),
        "skip_padding_fill": PADDING,
    },
    **{f"ttnn.{name}": {"global_cb": PREFETCH} for name in ("matmul", "linear")},
    "ttnn.sparse_matmul": {
        "global_cb": PREFETCH,
        "nnz": _none("How many blocks TT-NN's loop visits; the blocks that count are read from the sparsity."),
    },
    "ttnn.copy": {"input_b": Tag("used", "The values are written into it.")},
    "ttnn.embedding": {
        "padding_idx": _none("TT-NN keeps this row in L1; the row is the same."),
        "embeddings_type": _none("Which rows TT-NN keeps in L1; the rows are the same."),
    },
    **{
        f"ttnn.experimental.{name}": {"compute_with_storage_grid_size": _none(CORES)}
        for name in ("attn_matmul", "group_attn_matmul")
    },
    "ttnn.experimental.minimal_matmul": {"config": _none(CORES)},
    "ttnn.fill_implicit_tile_padding": {"fill_value": PADDING},
    "ttnn.tilize_with_val_padding": {"pad_value": PADDING},
    "ttnn.fold": {
        "use_transpose_as_fold": Tag("checked", "Another way to the same blocks; refused beside collapse_output."),
        "grid_size": _none(CORES),
        "override_memory_config": Tag("used", "Where the result is allocated."),
    },
    "ttnn.gather": {"sparse_grad": Tag("checked", "TT-NN refuses True.")},
    "ttnn.interleaved_to_sharded": {"keep_l1_aligned": _none("Shards keep the alignment of their memory either way.")},
    "ttnn.matmul_batched_weights": {"global_cb": PREFETCH, "optional_output_tensor": DEPRECATED},
    **{
        f"ttnn.{name}": {"is_causal_mask": Tag("checked", "The mask is added as it is; it must be there.")}
        for name in ("scale_mask_softmax", "scale_mask_softmax_in_place")
    },
    "ttnn.transformer.attention_softmax": {"program_config": _none(CORES)},
    "ttnn.transformer.attention_softmax_": {
        "program_config": _none(CORES),
        "memory_config": _none("The result goes into the input's own memory."),
    },
    "ttnn.transformer.joint_scaled_dot_product_attention": {"joint_strategy": Tag("checked", "Only 'rear' exists.")},
    "ttnn.transformer.scaled_dot_product_attention_decode": {
        "share_cache": _none("A cache of batch 1 is shared by broadcasting whether this is said or not.")
    },
    "ttnn.transformer.split_query_key_value_and_split_heads": {
        "use_falcon7b_backend": _none("Chooses between kernels with equal results.")
    },
    "ttnn.experimental.nlp_create_qkv_heads_decode": {
        "overlap_qk_coregrid": Tag("used", "Decides on which cores the shards of keys lie.")
    },
    **{
        f"ttnn.experimental.{name}": {"compute_with_storage_grid_size": _none(CORES)}
        for name in ("concatenate_heads", "split_query_key_value_and_split_heads")
    },
    **{
        f"ttnn.experimental.{name}": {"batch_offset": _none("TT-NN's kernels take only 0, the default.")}
        for name in ("paged_update_cache", "paged_fused_update_cache")
    },
    **{
        f"ttnn.{name}": {"recip_tensor": _none("Precomputed reciprocals of counts; the division is done here.")}
        for name in ("layer_norm", "layer_norm_pre_all_gather")
    },
    **{
        f"ttnn.{name}": {"use_2d_core_grid": _none(CORES)}
        for name in ("rms_norm_pre_all_gather", "rms_norm_post_all_gather")
    },
}


def unspoken(entry: Entry) -> list[str]:
    """The parameters of an operation that neither its function nor a tag accounts for."""
    function = entry.function
    if not isinstance(function, OpFunction) or entry.same_as is not None:
        return []
    own = PER_OPERATION.get(entry.name, {})
    missing = []
    for name in function.parameters():
        tag = own.get(name) or COMMON.get(name)
        # A composite hands on what it names; only what has no effect anywhere may be left out.
        spoken = tag is not None and (entry.operation is not None or tag.kind == "no effect" or name in own)
        if name not in function.takes and not spoken:
            missing.append(name)
    return missing


def without_effect(entries: Iterable[Entry]) -> dict[Tag, dict[str, list[str]]]:
    """Reason → parameter → operations that take it without effect."""
    found: dict[Tag, dict[str, list[str]]] = {}
    for entry in entries:
        function = entry.function
        if not isinstance(function, OpFunction) or entry.same_as is not None:
            continue
        own = PER_OPERATION.get(entry.name, {})
        for name in function.parameters():
            tag = own.get(name) or COMMON.get(name)
            if tag is not None and tag.kind == "no effect" and name not in function.takes:
                found.setdefault(tag, {}).setdefault(name, []).append(entry.name)
    return found


def page(entries: Iterable[Entry]) -> str:
    """The page docs/no_effect.md."""
    lines = [
        "# Parameters without effect here",
        "",
        "TT-NN takes these parameters and so does ttmesh, but they change nothing here. Every other parameter is used or",
        "checked; a test fails for one that is neither. Generated by `ttmesh ops --no-effect`.",
        "",
    ]
    ordered = sorted(without_effect(entries).items(), key=lambda item: (-_count(item[1]), item[0].reason))
    for tag, parameters in ordered:
        names = ", ".join(f"`{name}`" for name in sorted(parameters))
        operations = sorted({operation for users in parameters.values() for operation in users})
        lines += [f"## {names}", "", tag.reason, "", _listed(operations), ""]
    return "\n".join(lines)


def _count(parameters: dict[str, list[str]]) -> int:
    return sum(map(len, parameters.values()))


def _listed(operations: list[str], most: int = 12) -> str:
    shown = ", ".join(f"`{name}`" for name in operations[:most])
    return f"In {shown}" + (f" and {len(operations) - most} more operations." if len(operations) > most else ".")
