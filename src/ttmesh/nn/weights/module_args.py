"""Arguments of each module of a torch model, found by running the model once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ttmesh.base.dtypes import MathFidelity, bfloat16
from ttmesh.nn.weights.parameter_tree import (
    Conv2dArgs,
    ConvTranspose2dArgs,
    GroupNormArgs,
    MaxPool2dArgs,
    ModuleArgs,
    make_dot_access_dict,
)

CONV_FIELDS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
CONV_OPTIONS: dict[str, Any] = {
    "math_fidelity": MathFidelity.HiFi4,
    "dtype": bfloat16,
    "weights_dtype": bfloat16,
    "use_1d_systolic_array": True,
    "enable_auto_formatting": False,
    "conv_blocking_and_parallelization_config_override": {},
}


def infer_ttnn_module_args(
    *, model: torch.nn.Module, run_model: Callable[[torch.nn.Module], Any] | None, device: Any
) -> Any:
    """Arguments of every convolution, pooling and group norm, with the input sizes of that run.

    As in TT-NN they are nested by calls, under the last component of the module's name: modules in a ModuleList, or called
    by a module with its own `__call__`, appear under the module whose forward ran them.
    """
    if run_model is None:
        return None
    names = {module: name.rpartition(".")[2] for name, module in model.named_modules()}
    calls: list[dict[Any, Any]] = [{}]  # arguments found inside each call that has not returned yet

    def enter(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        calls.append({})

    def leave(module: torch.nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        inside = calls.pop()
        tensors = (value for value in (*inputs, *options.values()) if isinstance(value, torch.Tensor))
        args = describe_module(module, tuple(getattr(next(tensors, None), "shape", ())), device)
        name = names[module]
        for key in (name, int(name)) if name.isdigit() else (name,):
            calls[-1][key] = inside if args is None else args

    hooks = [module.register_forward_pre_hook(enter) for module in names]
    hooks += [module.register_forward_hook(leave, with_kwargs=True) for module in names]
    try:
        with torch.no_grad():
            run_model(model)
    finally:
        for hook in hooks:
            hook.remove()
    ran = calls[0].get("", calls[0])  # the model itself has no name
    return ran if isinstance(ran, ModuleArgs) else make_dot_access_dict(ran, ignore_types=(ModuleArgs,))


def describe_module(module: torch.nn.Module, shape: tuple[int, ...], device: Any) -> ModuleArgs | None:
    """The arguments of one module for an input of this shape, or None for modules of other types."""
    sizes: dict[str, Any] = (
        {"batch_size": shape[0], "input_height": shape[-2], "input_width": shape[-1]} if len(shape) > 2 else {}
    )
    if isinstance(module, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)):
        transposed = isinstance(module, torch.nn.ConvTranspose2d)
        fields = {name: getattr(module, name) for name in (*CONV_FIELDS, *(("output_padding",) if transposed else ()))}
        kind = ConvTranspose2dArgs if transposed else Conv2dArgs
        return kind(**fields, **sizes, **CONV_OPTIONS, device=device)
    if isinstance(module, torch.nn.MaxPool2d):
        fields = {name: getattr(module, name) for name in ("kernel_size", "stride", "padding", "dilation")}
        return MaxPool2dArgs(**fields, **sizes, input_channels=shape[1], dtype=bfloat16)
    if isinstance(module, torch.nn.GroupNorm):
        fields = {name: getattr(module, name) for name in ("num_groups", "num_channels", "eps", "affine")}
        return GroupNormArgs(**fields, **sizes, dtype=bfloat16)
    return None
