"""What moreh's device operations require of their operands one by one, with TT-NN's texts, in the order of its checks."""

from __future__ import annotations

from collections.abc import Mapping

from ttmesh.ops.requirements.operand_rules import FORMATS, OperandRule, formats, index_formats, tiles


def _moreh(name: str, operands: str, allowed: str = "bf16") -> tuple[OperandRule, ...]:
    """Operands in tiles of these formats; PARAMETER=NAME where TT-NN's text calls it otherwise."""
    listed = ", ".join(FORMATS[one].name for one in allowed.split())
    pairs = [(entry.partition("=")[0], entry.rpartition("=")[2]) for entry in operands.split()]
    return tuple(
        rule
        for parameter, shown in pairs
        for rule in (
            tiles(parameter, f"{name} {shown} only supports TILE layout."),
            formats(parameter, allowed, f"{name} {shown} only supports specific data types. [{listed}] "),
        )
    )


def _losses(
    operation: str, operands: str, *, target: str = "Invalid target_tensor dtype {}"
) -> tuple[OperandRule, ...]:
    """Targets in tiles of int32, then other operands in tiles of bfloat16; TT-NN calls the gradients targets, too."""
    into_tiles = f"target_tensor to {operation} must be tilized"
    return (
        tiles("target_tensor", into_tiles),
        index_formats("target_tensor", "i32", target),
        *(
            rule
            for parameter, name in ((entry.partition("=")[0], entry.rpartition("=")[2]) for entry in operands.split())
            for rule in (
                tiles(
                    parameter,
                    into_tiles if "grad" in name else f"{name} to {operation} must be {_TILED.get(name)}tilized",
                ),
                formats(parameter, "bf16", f"Invalid {name} dtype {{}}"),
            )
        ),
    )


_TILED = {"weight_tensor": "in ", "divisor_tensor": ""}
_LAYER_NORM = tuple(
    rule
    for operand in ("input", "gamma", "beta", "output", "mean", "rstd")
    for rule in (
        tiles(operand, "moreh_layer_norm only supports tiled layout. Got: {}"),
        formats(operand, "bf16", "moreh_layer_norm only supports bfloat16. Got: {}"),
    )
)
_SOFTMAX_BACKWARD = (
    tiles("output_tensor", "Output to softmax must be tilized"),
    tiles("output_grad_tensor", "Output_grad to softmax must be tilized"),
    formats("output_tensor", "bf16 bf8", "Output_tensor dtype should be bfloat16 or bfloat8_b"),
    formats("output_grad_tensor", "bf16 bf8", "Output_tensor_grad dtype should be bfloat16 or bfloat8_b"),
)
_NLL_LOSS = (
    tiles("input", "intput_tensor to nll_loss must be tilized"),
    formats("input", "bf16", "input tensor type must be bfloat16"),
    tiles("target", "target_tensor to nll_loss must be tilized"),
    index_formats("target", "i32", "target tensor type must be int32"),
    tiles("weight", "weight_tensor to nll_loss must be in row major layout"),
    formats("weight", "bf16", "weight tensor type must be bfloat16"),
)
_GRADIENT = _moreh("moreh_matmul", "grad=input other output")
_STATES = "grad exp_avg_in exp_avg_sq_in max_exp_avg_sq_in"
MOREH_OPERANDS: Mapping[str, tuple[OperandRule, ...]] = {
    "ttnn.moreh_adam": _moreh("moreh_adam", f"param_in=params_in {_STATES}"),
    "ttnn.moreh_adamw": _moreh("moreh_adamw", f"param_in {_STATES}", "bf16 bf8"),
    "ttnn.moreh_sgd": _moreh("moreh_sgd", "param_in=params_in grad momentum_buffer_in"),
    "ttnn.moreh_linear": _moreh("moreh_matmul", "input weight=other output bias"),
    "ttnn.moreh_matmul": _moreh("moreh_matmul", "input other output bias"),
    "ttnn.moreh_bmm": _moreh("moreh_matmul", "input mat2=other output"),
    "ttnn.moreh_left": _GRADIENT,
    "ttnn.moreh_right": _moreh("moreh_matmul", "other=input grad=other output"),
    "ttnn.moreh_weight": _moreh("moreh_matmul", "grad=input other output"),
    "ttnn.moreh_group_norm": _moreh("moreh_group_norm", "input output mean rstd gamma beta"),
    "ttnn.moreh_group_norm_backward": _moreh(
        "moreh_group_norm_backward_input_grad", "output_grad input mean rstd input_grad gamma"
    ),
    "ttnn.moreh_layer_norm": _LAYER_NORM,
    "ttnn.moreh_norm_backward": _moreh("moreh_norm_backward", "input output output_grad input_grad"),
    "ttnn.moreh_norm_backward input": _moreh(
        "moreh_layer_norm_backward_input_grad", "output_grad input mean rstd input_grad gamma"
    ),
    "ttnn.moreh_norm_backward parameters": _moreh(
        "moreh_layer_norm_backward_gamma_beta_grad", "output_grad input mean rstd output=gamma_grad"
    ),
    "ttnn.moreh_mean_backward": _moreh("moreh_mean_backward", "output_grad input_grad"),
    "ttnn.moreh_sum_backward": _moreh("moreh_sum_backward", "output_grad input_grad input"),
    "ttnn.moreh_nll_loss": _NLL_LOSS,
    "ttnn.moreh_nll_loss divisor": (
        tiles("target", "target_tensor to nll_loss must be tilized"),
        formats("weight", "bf16", "weight tensor dtype must be bfloat16"),
    ),
    "ttnn.moreh_nll_loss_backward": _losses(
        "nll_loss", "output_grad_tensor output_tensor=input_grad_tensor weight_tensor divisor_tensor"
    ),
    "ttnn.moreh_nll_loss_unreduced_backward": _losses(
        "nll_loss_unreduced", "output_grad_tensor output_tensor=input_grad_tensor weight_tensor"
    ),
    **dict.fromkeys(
        ("ttnn.moreh_softmax_backward", "ttnn.moreh_softmin_backward", "ttnn.moreh_logsoftmax_backward"),
        _SOFTMAX_BACKWARD,
    ),
}
