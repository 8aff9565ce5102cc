"""What softmaxes with a scale and a mask accept, in TT-NN's order and words."""

from __future__ import annotations

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
CHANGE_MASK = "Change the mask."
UNIFORM = "This path requires head-uniform masks; apply a per-head bias with a separate ttnn::add before the softmax."


def _in_four_dims(spec: TensorSpec) -> tuple[int, ...]:
    return (1,) * (4 - len(spec.padded_shape)) + tuple(spec.padded_shape)


def _require_four_dims(spec: TensorSpec) -> None:
    wrong = "Tensor rank is greater than 4"
    require(len(spec.shape) <= 4, wrong, "at most four dims", "Reshape it with ttnn.reshape.")


def _require_no_scale(call: Call) -> None:
    wrong = "Scale value must not be set when mask is not present"
    require(call["scale"] is None, wrong, "a mask, or no scale", "Pass mask=, or multiply by the scale first.")


def check_masked(call: Call) -> None:
    """scale_mask_softmax: a mask of one row or one tile of rows per batch."""
    _require_four_dims(call.specs[0])
    x, mask = _in_four_dims(call.specs[0]), call["mask"]
    if mask is None:
        _require_no_scale(call)
        return
    given = mask.spec.padded_shape
    wrong = f"Input and mask inner dimensions must match, got input: {x[-1]} vs mask: {given[-1]}"
    require(x[-1] == given[-1], wrong, "equal last dims", CHANGE_MASK)
    wrong = f"Input and mask batch sizes must match, got input: {x[0]} vs mask: {given[0]}"
    require(x[0] == given[0], wrong, "equal batches", CHANGE_MASK)
    wrong = (
        f"Mask height must be 1 or input tensor tile height ({TILE}), got: {given[-2]}. A full causal mask is not accepted "
        "here; for causal attention use ttnn::transformer::scaled_dot_product_attention with is_causal=true."
    )
    require(given[-2] in (1, TILE), wrong, f"1 or {TILE} rows", CHANGE_MASK)
    for i in range(1, len(x) - 2):
        wrong = f"Mask intermediate dimension {i} must be 1, got: {given[i]}. {UNIFORM}"
        require(given[i] == 1, wrong, "1", CHANGE_MASK)


def check_masked_in_place(call: Call) -> None:
    """The softmaxes in place: what their device operation wants of the mask, by program config."""
    _require_four_dims(call.specs[0])
    x, mask = _in_four_dims(call.specs[0]), call["mask"]
    if mask is None:
        _require_no_scale(call)
        return
    spec = mask.spec
    given = tuple(spec.padded_shape)
    if spec.memory_config.is_sharded():
        wrong = "Sharded mask must have TILE layout"
        require(spec.layout is Layout.TILE, wrong, "TILE layout", "Convert it with ttnn.to_layout.")
        require(given == x, "Sharded mask shape must match input tensor shape", str(x), CHANGE_MASK)
        return
    if spec.layout is Layout.ROW_MAJOR:
        rows = (given[0], 1, x[-1] // TILE, TILE)
        require(given == rows, "Non-sharded mask shape must match expected shape", str(rows), CHANGE_MASK)
    for i in range(1, len(x) - 2):
        wrong = f"Non-sharded mask intermediate dimensions must be 1, got {given[i]} at dimension {i}. {UNIFORM}"
        require(given[i] == 1, wrong, "1", CHANGE_MASK)
    if not getattr(call["program_config"], "block_w", None):
        wrong = f"Input and mask batch sizes must match, got {Shape(x)} for input and {Shape(given)} for mask"
        require(x[0] == given[0], wrong, "equal batches", CHANGE_MASK)


def check_masked_by_rows(call: Call) -> None:
    """scale_causal_mask_hw_dims_softmax_in_place: for shards with their program config alone."""
    check_masked_in_place(call)
    mask, config = call["mask"], call["program_config"]
    if mask is None or mask.spec.memory_config.is_sharded():
        return
    wrong = "Scale causal mask HW dims softmax not supported in default program config"
    by_blocks = bool(getattr(config, "block_w", None))
    require(by_blocks, wrong, "ttnn.SoftmaxShardedMultiCoreProgramConfig", "Shard the input and pass program_config=.")
    wrong = "Mask must have TILE layout for scale causal mask HW dims softmax"
    require(mask.spec.layout is Layout.TILE, wrong, "TILE layout", "Convert it with ttnn.to_layout.")
    wrong = "Input must be sharded for scale causal mask HW dims softmax"
    require(call.specs[0].memory_config.is_sharded(), wrong, "a sharded input", "Move it with ttnn.to_memory_config.")
    wrong = "Scale value is required for scale causal mask HW dims softmax"
    require(call["scale"] is not None, wrong, "scale=", "Pass scale=1.0.")
