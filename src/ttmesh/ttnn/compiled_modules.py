"""TT-NN's compiled modules (`ttnn._ttnn` and what is in it): which public modules hold their names here."""

from __future__ import annotations

# Operations by family: the public operations are at the root.
_FAMILIES = (
    "bernoulli binary binary_backward ccl complex complex_unary complex_unary_backward conv copy core creation "
    "data_movement debug embedding embedding_backward examples full full_like generic index_fill index_fill_new loss matmul "
    "moreh normalization point_to_point pool prefetcher quantization rand randn reduction sliding_window ternary "
    "ternary_backward trace unary unary_backward uniform"
)
_SERVICES = (
    "activation bfp_utils counter_channel d2d_stream_service d2h_stream_service h2d_stream_service hd_socket "
    "layer_ack_service layer_completion mcast_host prefetcher_pipe program_descriptor tensor_accessor_args"
)
_EXPERIMENTAL = (
    "experimental",
    "experimental.deepseek",
    "experimental.deepseek.moe",
    "experimental.deepseek.mla",
    "experimental.deepseek_prefill",
    "",
)

# compiled module -> the public modules whose names it shows, first found first; "" is the root
COMPILED_MODULES: dict[str, tuple[str, ...]] = {
    "_ttnn.operations": ("",),
    **{f"_ttnn.operations.{family}": ("",) for family in _FAMILIES.split()},
    "_ttnn.operations.kv_cache": ("kv_cache", ""),
    "_ttnn.operations.transformer": ("transformer", ""),
    "_ttnn.operations.experimental": _EXPERIMENTAL,
    "_ttnn.operations.experimental.ccl_experimental": ("experimental.ccl_experimental", *_EXPERIMENTAL),
    "_ttnn.operations.experimental.ccl_experimental.experimental": _EXPERIMENTAL,
    "_ttnn.operations.experimental.kda": ("experimental.kda", ""),
    "_ttnn.operations.experimental.quasar": ("experimental.quasar", ""),
    "_ttnn.operations.experimental.quasar.transformer": ("transformer",),
    "_ttnn.graph": ("graph",),
    "_ttnn.deprecated.operations.primary": ("",),
    **{f"_ttnn.{name}": ("",) for name in _SERVICES.split()},
}
