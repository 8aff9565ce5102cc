"""Parameters of a torch model as TT-NN tensors: `preprocess_model_parameters` and its building blocks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.base import dtypes
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError
from ttmesh.base.ttnn_config import CONFIG
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn import parameter_cache
from ttmesh.nn.weights.module_args import infer_ttnn_module_args
from ttmesh.nn.weights.parameter_tree import (
    ModuleArgs,
    ParameterDict,
    ParameterList,
    make_parameter_dict,
    move_to_device,
)
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import from_torch

Preprocessor = Callable[..., Any]
Convert = Callable[[torch.nn.Module, str], bool]

PARAMETER_DTYPES = {
    torch.uint8: dtypes.uint8,
    torch.int8: dtypes.int8,
    torch.int16: dtypes.uint16,
    torch.int32: dtypes.int32,
    torch.int64: dtypes.uint32,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.bfloat16,
    torch.float64: dtypes.bfloat16,
}


def preprocess_linear_weight(
    weight: torch.Tensor, *, dtype: DataType, layout: Layout = Layout.TILE, weights_mesh_mapper: Any = None
) -> Tensor:
    """A Linear's weight, transposed so that inputs multiply it from the left."""
    return _make_tensor(weight.T.contiguous(), dtype=dtype, layout=layout, mesh_mapper=weights_mesh_mapper)


def preprocess_linear_bias(
    bias: torch.Tensor, *, dtype: DataType, layout: Layout = Layout.TILE, weights_mesh_mapper: Any = None
) -> Tensor:
    """A Linear's bias as a row."""
    return _make_tensor(bias.reshape(1, -1), dtype=dtype, layout=layout, mesh_mapper=weights_mesh_mapper)


def preprocess_layernorm_parameter(parameter: torch.Tensor, *, dtype: DataType, layout: Layout = Layout.TILE) -> Tensor:
    """A LayerNorm's weight or bias as a row."""
    return _make_tensor(parameter.reshape(1, -1), dtype=dtype, layout=layout)


def preprocess_embedding_weight(weight: torch.Tensor, *, dtype: DataType) -> Tensor:
    """An embedding's table, row-major."""
    return _make_tensor(weight, dtype=dtype)


def fold_batch_norm2d_into_conv2d(conv: torch.nn.Conv2d, bn: torch.nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the one convolution that equals a convolution followed by its batch norm."""
    if not bn.track_running_stats or bn.running_mean is None or bn.running_var is None:
        raise MeshError(
            "BatchNorm2d must have track_running_stats=True to be folded into Conv2d",
            expected="running statistics",
            fix="Create the BatchNorm2d with track_running_stats=True and train or load it.",
        )
    scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
    offset = 0 if conv.bias is None else conv.bias
    return conv.weight * scale[:, None, None, None], (offset - bn.running_mean) * scale + bn.bias


def default_preprocessor(model: torch.nn.Module, name: str, ttnn_module_args: Any) -> ParameterDict:
    """Parameters of the modules TT-NN knows (Linear, LayerNorm, Embedding); empty for others."""
    parameters: dict[str, Tensor] = {}
    if isinstance(model, torch.nn.Linear):
        parameters["weight"] = preprocess_linear_weight(model.weight, dtype=dtypes.bfloat16)
        if model.bias is not None:
            parameters["bias"] = preprocess_linear_bias(model.bias, dtype=dtypes.bfloat16)
    elif isinstance(model, torch.nn.LayerNorm):
        parameters["weight"] = preprocess_layernorm_parameter(model.weight, dtype=dtypes.bfloat16)
        parameters["bias"] = preprocess_layernorm_parameter(model.bias, dtype=dtypes.bfloat16)
    elif isinstance(model, torch.nn.Embedding):
        parameters["weight"] = preprocess_embedding_weight(model.weight, dtype=dtypes.bfloat16)
    return make_parameter_dict(parameters)


def convert_torch_model_to_ttnn_model(
    model: torch.nn.Module,
    *,
    convert_to_ttnn: Convert,
    custom_preprocessor: Preprocessor | None,
    name: str,
    ttnn_module_args: Any,
) -> Any:
    """The parameters of a module and its children: the user's preprocessor first, then the default one."""

    def child_of(child: torch.nn.Module, key: Any, args: Any) -> Any:
        return convert_torch_model_to_ttnn_model(
            child,
            convert_to_ttnn=convert_to_ttnn,
            custom_preprocessor=custom_preprocessor,
            name=f"{name}.{key}" if name else str(key),
            ttnn_module_args=args,
        )

    if isinstance(model, torch.nn.ModuleList):
        args = ttnn_module_args
        return ParameterList([child_of(child, i, None if args is None else args[i]) for i, child in enumerate(model)])
    if custom_preprocessor is not None:
        options = {"ttnn_module_args": ttnn_module_args, "convert_to_ttnn": convert_to_ttnn}
        own = custom_preprocessor(model, name, **_select_options(custom_preprocessor, options))
        if own:
            return make_parameter_dict(own)
    children = dict(model.named_children())
    own_parameters = dict(model.named_parameters(recurse=False))
    parameters: dict[Any, Any] = {}
    if convert_to_ttnn(model, name):
        known = default_preprocessor(model, name, ttnn_module_args)
        if known:
            _check_all_converted(known, [*children, *own_parameters], name)
            return known
        parameters = {key: _make_tensor(p, dtype=PARAMETER_DTYPES[p.dtype]) for key, p in own_parameters.items()}
    elif isinstance(model, torch.nn.Linear):
        parameters = {"weight": model.weight.T.contiguous()}
        if model.bias is not None:
            parameters["bias"] = model.bias
    else:
        parameters = dict(own_parameters)
    for key, child in children.items():
        place = int(key) if key.isdigit() else key
        below = child_of(child, place, ttnn_module_args.get(place) if ttnn_module_args is not None else None)
        if below:
            parameters[place] = below
    return make_parameter_dict(parameters)


def preprocess_model(
    *,
    model_name: str | None = None,
    version: str | None = None,
    initialize_model: Callable[[], torch.nn.Module] | None = None,
    convert_to_ttnn: Convert | None = None,
    custom_preprocessor: Preprocessor | None = None,
    device: MeshDevice | None = None,
    prefix: str = "",
    run_model: Callable[[torch.nn.Module], Any] | None = None,
    reader_patterns_cache: dict[Any, Any] | None = None,
) -> ParameterDict:
    """Parameters of a model, with `run_model` also the arguments of its convolutions and poolings.

    With a model_name and CONFIG.enable_model_cache they are kept on disk under the version. `reader_patterns_cache` has
    no effect: there are no reader patterns to reuse.
    """

    def build() -> ParameterDict:
        if initialize_model is None:
            raise MeshError(
                f'Cached weights for the model {model_name} (version "{version}") don\'t exist',
                expected="initialize_model, or a cache of that version",
                fix="Pass initialize_model so that the weights can be created.",
            )
        model = initialize_model().eval()
        args = infer_ttnn_module_args(model=model, run_model=run_model, device=device)
        parameters = convert_torch_model_to_ttnn_model(
            model,
            convert_to_ttnn=convert_to_ttnn or (lambda module, full_name: True),
            custom_preprocessor=custom_preprocessor,
            name=prefix,
            ttnn_module_args=args,
        )
        return make_parameter_dict(_add_args(parameters, args))

    if model_name is not None and CONFIG.enable_model_cache:
        folder = CONFIG.model_cache_path / model_name.replace("/", "_")
        parameters = parameter_cache.load_or_build(folder, version or "unversioned", build, device=device)
    else:
        parameters = build()
    return parameters if device is None else make_parameter_dict(move_to_device(parameters, device))


def preprocess_model_parameters(
    *,
    model_name: str | None = None,
    version: str | None = None,
    initialize_model: Callable[[], torch.nn.Module] | None = None,
    convert_to_ttnn: Convert | None = None,
    custom_preprocessor: Preprocessor | None = None,
    device: MeshDevice | None = None,
    prefix: str = "",
) -> ParameterDict:
    """Parameters of a model as a tree with attribute access, on the device when one is given."""
    return preprocess_model(
        model_name=model_name,
        version=version,
        initialize_model=initialize_model,
        convert_to_ttnn=convert_to_ttnn,
        custom_preprocessor=custom_preprocessor,
        device=device,
        prefix=prefix,
    )


def preprocess_remaining_children_and_parameters(
    model: torch.nn.Module,
    name: str,
    convert_to_ttnn: Convert,
    custom_preprocessor: Preprocessor | None,
    parameters: dict[Any, Any],
    ttnn_module_args: Any,
    *,
    already_preprocessed_children: Sequence[str],
) -> dict[Any, Any]:
    """Add the children and parameters that a custom preprocessor did not handle."""
    for key, child in model.named_children():
        if key not in already_preprocessed_children:
            parameters[key] = convert_torch_model_to_ttnn_model(
                child,
                convert_to_ttnn=convert_to_ttnn,
                custom_preprocessor=custom_preprocessor,
                name=name,
                ttnn_module_args=ttnn_module_args.get(key) if ttnn_module_args is not None else None,
            )
    for key, parameter in model.named_parameters(recurse=False):
        if key not in already_preprocessed_children:
            parameters[key] = _make_tensor(parameter, dtype=PARAMETER_DTYPES[parameter.dtype])
    return parameters


def _make_tensor(
    values: torch.Tensor, *, dtype: DataType, layout: Layout | None = None, mesh_mapper: Any = None
) -> Tensor:
    tensor = from_torch(values, dtype=dtype, layout=layout, mesh_mapper=mesh_mapper)
    assert tensor is not None, "only None gives None"
    return tensor


def _select_options(preprocessor: Preprocessor, options: dict[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(preprocessor).parameters)
    if len(names) < 2:
        raise MeshError(
            "Custom preprocessor must have at least two parameters: model and name",
            expected="preprocessor(model, name)",
            fix="Add both parameters; ttnn_module_args and convert_to_ttnn may follow.",
        )
    for extra in names[2:]:
        if extra not in options:
            raise MeshError(
                f"Unsupported parameter: {extra}", expected=f"one of {sorted(options)}", fix="Remove this parameter."
            )
    return {key: value for key, value in options.items() if key in names}


def _check_all_converted(known: ParameterDict, expected: list[str], name: str) -> None:
    if sorted(known) != sorted(expected):
        raise MeshError(
            f"Not all children or parameters were converted using default_preprocessor_parameters! ({name or 'the model'})",
            expected=f"{sorted(expected)}",
            fix="Handle this module in a custom preprocessor.",
        )


def _add_args(parameters: Any, args: Any) -> Any:
    """The tree with each module's arguments beside its parameters."""
    if isinstance(args, ModuleArgs):
        args.pop("device", None)
        parameters["ttnn_module_args"] = args
    elif args is not None:
        for key in args:
            if isinstance(parameters, dict) and key not in parameters and isinstance(args[key], ModuleArgs):
                parameters[key] = ParameterDict()
            if isinstance(parameters, dict) and key in parameters:
                _add_args(parameters[key], args[key])
    return parameters
