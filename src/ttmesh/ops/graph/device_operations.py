"""TT-NN's device operations behind a call: their names and printed arguments, as its graph captures show them.

Names were read off captures of TT-NN; a program whose name is not known has no node. The printed attributes hold the call's
options, the result's format and the resolved compute config; their order is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from ttmesh.base.dtypes import Layout
from ttmesh.ops.catalogue.fpu_defaults import fpu_rules
from ttmesh.tensor.calls.launch_op import tensors_in
from ttmesh.tensor.calls.operation import Case
from ttmesh.tensor.calls.plan import Plan
from ttmesh.tensor.observer import LaunchedProgram
from ttmesh.tensor.spec.memory_config import MemoryConfig, cpp
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

_UNARY = (
    "abs acos acosh alt_complex_rotate90 asin asinh atan atanh bitwise_not cbrt ceil ceil_bw celu cos cosh deg2rad "
    "digamma elu eqz erfc erfinv exp exp2 expm1 fill fill_bw fill_zero_bw floor floor_bw frac full_like gelu gez gtz "
    "hardmish hardshrink hardsigmoid hardswish hardtanh heaviside i0 i1 identity isfinite isinf isnan isneginf isposinf "
    "leaky_relu lez lgamma log log10 log1p log2 log_sigmoid logical_not logical_not_ logit ltz mish neg neg_bw nez prelu "
    "rad2deg rdiv reciprocal relu relu6 relu_max relu_min round round_bw rpow rsqrt selu sigmoid sigmoid_accurate sign_bw "
    "signbit silu sin sinh softplus softshrink softsign sqrt square swish tan tanh tanhshrink trunc_bw xielu zeros_like"
)
_BINARY = (
    "add add_ atan2 bias_gelu bias_gelu_ bitwise_right_shift deg2rad_bw div divide divide_ eq eq_ ge ge_ gt gt_ hypot "
    "l1_loss ldexp ldexp_ le le_ logaddexp logaddexp2 logaddexp2_ logaddexp_ logical_and logical_and_ logical_or "
    "logical_or_ logical_right_shift logical_xor logical_xor_ lt lt_ mse_loss multiply multiply_ ne ne_ nextafter "
    "rad2deg_bw rsub rsub_ squared_difference squared_difference_ subtract subtract_ tril xlogy"
)
_OPERATIONS = {
    "UnaryDeviceOperation": _UNARY,
    "BinaryNgDeviceOperation": _BINARY,
    "TernaryDeviceOperation": "addcdiv addcmul mac snake_beta where",
    "CopyDeviceOperation": "assign concat_bw copy",
    "UnaryBackwardDeviceOperation": "gelu_bw sigmoid_bw tanh_bw",
    "BinaryBackwardDeviceOperation": "mul_bw",
    "SoftmaxDeviceOperation": "softmax softmax_in_place scale_mask_softmax scale_mask_softmax_in_place",
    "LayerNormDeviceOperation": "layer_norm rms_norm",
    "LayerNormPreAllGatherDeviceOperation": "layer_norm_pre_all_gather rms_norm_pre_all_gather",
    "LayerNormPostAllGatherDeviceOperation": "layer_norm_post_all_gather rms_norm_post_all_gather",
    "MatmulDeviceOperation": "matmul linear",
    "MoveDeviceOperation": "move reallocate",
    "ArgMaxDeviceOperation": "argmax",
    "BernoulliDeviceOperation": "bernoulli",
    "UniformDeviceOperation": "uniform",
    "CloneOperation": "clone",
    "TypecastDeviceOperation": "typecast",
    "NonZeroIndicesDeviceOperation": "nonzero",
    "EmbeddingsDeviceOperation": "embedding",
    "SliceDeviceOperation": "slice",
    "SDPAOperation": "transformer.scaled_dot_product_attention",
    "BroadcastDeviceOperation": "broadcast",
    "AllBroadcastDeviceOperation": "all_broadcast",
    "FullDeviceOperation": "moreh_full moreh_full_like",
    "MorehAbsPowOperation": "moreh_abs_pow",
    "MorehDotOperation": "moreh_dot",
    "AccumulationDeviceOperation": "moreh_cumsum",
}
_BY_OPERATION = {f"ttnn.{name}": device for device, names in _OPERATIONS.items() for name in names.split()}
_BY_STAGE = {
    "accumulate": "AccumulationDeviceOperation", "add": "BinaryNgDeviceOperation",
    "all_broadcast": "AllBroadcastDeviceOperation",
    "all_gather": "AllGatherDeviceOperation", "bcast": "BcastDeviceOperation", "concat": "ConcatDeviceOperation",
    "fast_reduce_nc": "FastReduceNCDeviceOperation", "fill_pad": "FillPadDeviceOperation",
    "interleaved_to_sharded": "InterleavedToShardedDeviceOperation", "matmul": "MatmulDeviceOperation",
    "moreh_sum": "MorehSumOperation", "pad": "PadDeviceOperation", "permute": "PermuteDeviceOperation",
    "point_to_point": "PointToPointOp", "prod_all": "ProdAllDeviceOperation", "prod_nc": "ProdNcDeviceOperation",
    "reduce": "ReduceDeviceOperation", "reduce_scatter": "ReduceScatterDeviceOperation", "repeat": "RepeatDeviceOperation",
    "repeat_codegen": "RepeatCodegenDeviceOperation", "reshape_view": "ReshapeViewDeviceOperation",
    "sharded_to_interleaved": "ShardedToInterleavedDeviceOperation", "slice": "SliceDeviceOperation",
    "sort": "SortDeviceOperation", "tilize": "TilizeDeviceOperation", "to_memory_config": "CopyDeviceOperation",
    "topk": "TopKDeviceOperation", "transpose": "TransposeDeviceOperation", "typecast": "TypecastDeviceOperation",
    "untilize": "UntilizeDeviceOperation", "untilize_codegen": "UntilizeCodegenDeviceOperation",
    "welford": "WelfordReduceDeviceOperation",
}  # fmt: skip
WITHOUT_TENSORS = frozenset({"FullDeviceOperation"})
# Those whose programs hold circular buffers; others hold dataflow buffers, which only captures without dispatch show.
_CIRCULAR = (
    "AllBroadcastDeviceOperation AllGatherDeviceOperation BernoulliDeviceOperation BinaryNgDeviceOperation "
    "Conv2dDeviceOperation GatherCodegenDeviceOperation GatherDeviceOperation GroupNormDeviceOperation "
    "HaloDeviceOperation MorehArangeOperation MorehLayerNormOperation NonZeroIndicesDeviceOperation Pool2D "
    "RandDeviceOperation ReduceScatterDeviceOperation RepeatCodegenDeviceOperation "
    "RepeatInterleaveCodegenDeviceOperation RotaryEmbeddingDeviceOperation SDPAOperation SdpaDecodeDeviceOperation "
    "TernaryDeviceOperation UniformDeviceOperation UntilizeCodegenDeviceOperation"
)
WITH_CIRCULAR_BUFFERS = frozenset(_CIRCULAR.split())


def name_device_operations(plan: Plan, launch: LaunchedProgram) -> list[str]:
    """TT-NN's names of the device operations of a plan, in order, as far as they are known."""
    if plan.name == "ttnn.transpose" and plan.program_count == 1:
        return [_name_transpose(launch)]
    found = []
    for program in plan.programs:
        stage = program[0] if isinstance(program, tuple) and program else None
        name = _BY_STAGE.get(stage) if isinstance(stage, str) else None
        found.append(name or _BY_OPERATION.get(plan.name))
    return [name for name in found if name is not None]


def _name_transpose(launch: LaunchedProgram) -> str:
    """Rows move as a permutation unless the last dim takes part."""
    rank = len(launch.specs[0].shape)
    moves_rows = rank - 1 not in (launch.arguments["dim1"] % rank, launch.arguments["dim2"] % rank)
    in_rows = launch.specs[0].layout is Layout.ROW_MAJOR
    return "PermuteDeviceOperation" if in_rows and moves_rows else "TransposeDeviceOperation"


def print_arguments(name: str, plan: Plan, launch: LaunchedProgram) -> list[str]:
    """The two printed arguments of a device operation: its attributes and its tensors."""
    items = [_print_value(value) for value in _list_options(name, launch)]
    if plan.kinds:
        spec = plan.kinds[0].spec
        items += [cpp(spec.dtype), cpp(spec.layout), str(spec.memory_config)]
    config = _print_compute_config(plan, launch)
    tensors = () if name in WITHOUT_TENSORS else launch.specs
    printed = ", ".join(map(print_tensor, tensors))
    return [f"operation_attributes_t({', '.join([*items, *config])})", f"{{{printed}}}"]


def _list_options(name: str, launch: LaunchedProgram) -> list[Any]:
    """The options of a call that are neither tensors nor printed with the result."""
    if name == "PermuteDeviceOperation" and "dim1" in launch.arguments:
        dims = list(range(len(launch.specs[0].shape)))
        first, second = launch.arguments["dim1"], launch.arguments["dim2"]
        dims[first], dims[second] = dims[second], dims[first]
        return [dims]
    return [
        value
        for key, value in launch.arguments.items()
        if value is not None
        and not isinstance(value, Tensor | MemoryConfig)
        and key not in ("compute_kernel_config", "device", "mesh_device")
        and not (isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value))
    ]


def _print_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Enum):
        return f"{type(value).__name__}::{value.name}"
    if isinstance(value, list | tuple):
        return f"SmallVector([{', '.join(map(_print_value, value))}])"
    return str(value)


def print_tensor(spec: TensorSpec) -> str:
    """A device tensor as TT-NN prints it among arguments."""
    return f"Tensor(storage=DeviceStorage(),tensor_spec={_print_spec(spec)})"


def _print_spec(spec: TensorSpec) -> str:
    page = "TilePageConfig" if spec.layout is Layout.TILE else "RowMajorPageConfig"
    layout = f"dtype={cpp(spec.dtype)},page_config=PageConfig(config={page}()),memory_config={spec.memory_config}"
    return f"TensorSpec(logical_shape={spec.shape},tensor_layout=TensorLayout({layout}))"


def _print_compute_config(plan: Plan, launch: LaunchedProgram) -> Sequence[str]:
    """The compute config that a call has after its defaults, where it takes one."""
    rule, tensors = fpu_rules.get(plan.name), tensors_in(launch.arguments)
    mesh = tensors[0].device() if tensors else None
    if rule is None or mesh is None or "compute_kernel_config" not in launch.arguments:
        return ()
    results = [kind.spec for kind in plan.kinds]
    case = Case({}, (), launch.specs, results, mesh.shape.dims(), launch.arguments, mesh.arch(), mesh.heap.map)
    config = rule(case)
    if config is None:
        return ()
    return (
        f"ComputeKernelConfig(math_fidelity={config.fidelity.name},fp32_dest_acc_en={int(config.fp32_dest)},"
        f"packer_l1_acc={int(config.packer_l1_acc)})",
    )
