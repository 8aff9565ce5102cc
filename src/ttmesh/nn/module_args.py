"""What each module of a torch model is called with, found by running the model once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ttmesh.base.dtypes import MathFidelity, bfloat16
from ttmesh.nn.parameter_tree import (
    Conv2dArgs,
    ConvTranspose2dArgs,
    DotAccessDict,
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
    """Arguments of every convolution, pooling and group norm by module name, with the input sizes they met."""
    if run_model is None:
        return None
    found: dict[str, ModuleArgs | DotAccessDict] = {}
    names = {module: name for name, module in model.named_modules()}

    def note(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        args = described(module, tuple(inputs[0].shape), device)
        if args is not None:
            found[names[module]] = args
        elif names[module] and not list(module.children()):
            found[names[module]] = (
                DotAccessDict()
            )  # TT-NN names every layer that ran; model code hangs its module there

    hooks = [module.register_forward_pre_hook(note) for module in names]
    try:
        with torch.no_grad():
            run_model(model)
    finally:
        for hook in hooks:
            hook.remove()
    return found[""] if "" in found else nested(found)  # a model that is one layer has that layer's arguments


def described(module: torch.nn.Module, shape: tuple[int, ...], device: Any) -> ModuleArgs | None:
    """The arguments of one module for an input of this shape, or None for modules without."""
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


def nested(found: Mapping[str, ModuleArgs | DotAccessDict]) -> Any:
    """Dotted names as nested mappings; a numeric name is there as a number too, as ModuleLists are indexed."""
    tree: dict[Any, Any] = {}
    for name, args in found.items():
        *path, last = name.split(".") if name else [""]
        here = tree
        for part in path:
            inner = here.setdefault(part, DotAccessDict())
            if part.isdigit():
                here[int(part)] = inner
            here = inner
        here[last] = args
        if last.isdigit():
            here[int(last)] = args
    return make_dot_access_dict(tree, ignore_types=(ModuleArgs,))
