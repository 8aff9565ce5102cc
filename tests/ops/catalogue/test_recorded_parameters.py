"""Operations take the parameters that TT-NN 0.81.1's take, refuse others, and say which they do not emulate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ops.catalogue.definition import OpFunction
from ttmesh.ops.catalogue.families import load
from ttmesh.ops.configs.refused_options import REFUSED, check_options

FILE = Path(__file__).parent / "recorded" / "parameters.txt"
RECORDED = {
    name: parameters.split()
    for name, _, parameters in (line.partition(":") for line in FILE.read_text().splitlines() if line[0] != "#")
}
# Its two required tensors and their options came later than tt-metal e4f9f0b, whose tests call it without them.
NEWER = {"ttnn.experimental.kda.qkv_causal_conv1d_silu"}
EVERYWHERE = {"queue_id", "cq_id"}  # removed by TT-NN's decorator


@pytest.fixture
def device() -> Iterator[Any]:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


CATALOGUE = load()


def find(name: str) -> OpFunction:
    function = CATALOGUE[name].function
    assert isinstance(function, OpFunction), name
    return function


def test_every_parameter_of_ttnn_is_taken() -> None:
    lacking = {
        name: missing
        for name, parameters in RECORDED.items()
        if name not in NEWER
        if (
            missing := {*parameters}
            - {p.rstrip("_") for p in find(name)._parameters}
            - {*find(name)._parameters}
            - EVERYWHERE
        )
    }

    assert lacking == {}


@pytest.mark.parametrize("name", RECORDED)
def test_a_keyword_that_no_overload_has_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        find(name).bind((), {"no_such_option": 1})


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, options in REFUSED.items() for option in options]
)
def test_an_option_that_is_not_emulated_says_so_and_its_default_is_taken(name: str, option: str) -> None:
    defaults = {key: one.default for form in find(name)._overloads for key, one in form.signature.parameters.items()}

    check_options(name, (option,), {option: defaults[option]}, defaults)
    with pytest.raises(NotImplementedError, match=f"{name}: {option} is not emulated"):
        check_options(name, (option,), {option: 7}, defaults)


def test_a_refused_option_is_refused_by_the_call(device: Any) -> None:
    x = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)

    assert ttnn.linear(x, x, in0_column_offset=None).shape == x.shape
    with pytest.raises(NotImplementedError, match=r"ttnn\.linear: in0_column_offset is not emulated"):
        ttnn.linear(x, x, in0_column_offset=32)


def test_the_variant_of_a_gradient_of_gelu_has_an_effect(device: Any) -> None:
    values = torch.linspace(-3, 3, 1024).reshape(32, 32)
    x = ttnn.from_torch(values, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=device)
    ones = ttnn.ones_like(x)

    (exact,) = ttnn.gelu_bw(ones, x)
    (accurate,) = ttnn.gelu_bw(ones, x, variant=ttnn.GeluVariant.Accurate)
    (tanh,) = ttnn.gelu_bw(ones, x, variant=ttnn.GeluVariant.Tanh)
    (same,) = ttnn.gelu_bw(ones, x, approximate="tanh")

    assert ttnn.to_torch(exact).equal(ttnn.to_torch(accurate))
    assert ttnn.to_torch(tanh).equal(ttnn.to_torch(same))
    assert not ttnn.to_torch(tanh).equal(ttnn.to_torch(exact))
