"""Parameters of torch models as trees of tensors."""

from __future__ import annotations

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.ttnn_config import CONFIG
from ttmesh.nn.preprocessing import fold_batch_norm2d_into_conv2d, preprocess_model, preprocess_model_parameters


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(32, 64), torch.nn.Linear(64, 32, bias=False)])
        self.norm = torch.nn.LayerNorm(32)
        self.scale = torch.nn.Parameter(torch.ones(32))


def test_known_modules_become_tensors_reached_by_attribute() -> None:
    model = Block()

    parameters = preprocess_model_parameters(initialize_model=lambda: model)

    assert tuple(parameters.layers[0].weight.shape) == (32, 64)
    assert parameters.layers[0].weight.layout is ttnn.TILE_LAYOUT
    assert torch.equal(ttnn.to_torch(parameters.layers[0].weight), model.layers[0].weight.T.detach().bfloat16())
    assert "bias" not in parameters.layers[1]
    assert 1 in parameters.layers
    assert 2 not in parameters.layers
    assert tuple(parameters.norm.bias.shape) == (1, 32)
    assert "ttnn.Tensor(shape=Shape([64, 32])" in repr(parameters)
    with pytest.raises(AttributeError, match="no 'nrom' here; expected one of"):
        _ = parameters.nrom


def test_a_custom_preprocessor_decides_first_and_weights_can_be_distributed() -> None:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    mapper = ttnn.ShardTensorToMesh(mesh, dim=1)

    def preprocessor(model, name, ttnn_module_args):
        if isinstance(model, torch.nn.Linear):
            weight = ttnn.from_torch(model.weight.T, dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
            return {"weight": weight}
        return None

    parameters = preprocess_model_parameters(initialize_model=Block, custom_preprocessor=preprocessor, device=mesh)

    assert tuple(parameters.layers[0].weight.shape) == (32, 32)
    assert parameters.layers[0].weight.dtype is ttnn.bfloat8_b
    assert parameters.norm.weight.device() is mesh
    del parameters
    ttnn.close_mesh_device(mesh)


def test_modules_can_stay_torch() -> None:
    parameters = preprocess_model_parameters(
        initialize_model=Block, convert_to_ttnn=lambda model, name: name != "layers.0"
    )

    assert isinstance(parameters.layers[0].weight, torch.Tensor)
    assert tuple(parameters.layers[0].weight.shape) == (32, 64)


def test_running_the_model_finds_the_arguments_of_its_convolutions() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2))

    parameters = preprocess_model(
        initialize_model=lambda: net,
        run_model=lambda model: model(torch.randn(2, 3, 16, 16)),
        custom_preprocessor=lambda model, name: (
            {"weight": model.weight} if isinstance(model, torch.nn.Conv2d) else None
        ),
    )

    args = parameters[0].ttnn_module_args
    assert (args.in_channels, args.out_channels, args.batch_size, args.input_height) == (3, 8, 2, 16)
    assert parameters[2].ttnn_module_args.kernel_size == 2


def test_the_cache_is_used_while_the_version_fits(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(CONFIG, "enable_model_cache", True)
    monkeypatch.setattr(CONFIG, "model_cache_path", tmp_path)
    first = preprocess_model_parameters(model_name="a/b", version="1", initialize_model=Block)

    again = preprocess_model_parameters(model_name="a/b", version="1")

    assert torch.equal(ttnn.to_torch(first.layers[1].weight), ttnn.to_torch(again.layers[1].weight))
    with pytest.raises(RuntimeError, match=r'Cached weights for the model a/b \(version "2"\) don\'t exist'):
        preprocess_model_parameters(model_name="a/b", version="2")


@pytest.mark.parametrize(
    ("preprocessor", "text"),
    [
        (lambda model: {}, "Custom preprocessor must have at least two parameters: model and name"),
        (lambda model, name, colour: {}, "Unsupported parameter: colour"),
    ],
)
def test_preprocessors_with_other_parameters_are_refused(preprocessor, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        preprocess_model_parameters(initialize_model=Block, custom_preprocessor=preprocessor)


def test_a_batch_norm_folds_into_its_convolution() -> None:
    conv, norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8).eval()
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_()
        norm.bias.normal_()
        weight, bias = fold_batch_norm2d_into_conv2d(conv, norm)
        x = torch.randn(2, 3, 8, 8)

        assert torch.allclose(norm(conv(x)), torch.nn.functional.conv2d(x, weight, bias), atol=1e-5)


def test_layers_without_arguments_are_named_too() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 5))

    args = ttnn.model_preprocessing.infer_ttnn_module_args(
        model=model, run_model=lambda model: model(torch.zeros(1, 3, 8, 8)), device=None
    )

    assert args[0].in_channels == 3
    assert args[2] == {}


class Backbone(torch.nn.Module):
    """A module with a call of its own, as some of tt-metal's reference models have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 4, 3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv1(x)
        return result


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.stages = torch.nn.ModuleList([torch.nn.Conv2d(4, 5, 1)])
        self.tail = torch.nn.Sequential(torch.nn.Conv2d(5, 6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.tail(input=self.stages[0](self.backbone(x)))
        return result


def test_module_arguments_stand_where_the_module_was_called_from() -> None:
    args = ttnn.model_preprocessing.infer_ttnn_module_args(
        model=Head(), run_model=lambda model: model(torch.zeros(2, 3, 8, 8)), device=None
    )

    assert (args.conv1.out_channels, args.conv1.input_height) == (4, 8)
    assert (args[0].out_channels, args["0"].input_height) == (5, 6)
    assert (args.tail[0].out_channels, args.tail[0].batch_size) == (6, 2)
    assert set(args) == {"conv1", "0", 0, "tail"}
