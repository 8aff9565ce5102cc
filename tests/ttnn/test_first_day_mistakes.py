"""What somebody does wrong on the first day, and what the error says: the value, what was expected, what to do."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn

DEVICES = ("device", "mesh_device")
QUIET = {"is_wormhole_b0", "is_blackhole", "SetDefaultDevice", "set_default_device"}  # work without a device


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    opened = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield opened
    ttnn.close_mesh_device(opened)


def put(mesh: Any, *shape: int, **options: Any) -> Any:
    return ttnn.from_torch(torch.ones(*shape), layout=ttnn.TILE_LAYOUT, device=mesh, **options)


PLAIN_VALUES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "mapper": (lambda m: put(m, 8, 32, mesh_mapper="shard"), r"mesh_mapper='shard' is a str; pass ttnn.ShardTensorToMesh"),
    "mapper function": (
        lambda m: put(m, 8, 32, mesh_mapper=ttnn.ShardTensorToMesh),
        r"is a function; pass ttnn.ShardTensorToMesh\(mesh_device, dim=0\)",
    ),
    "composer": (lambda m: ttnn.to_torch(put(m, 8, 32), mesh_composer="concat"), r"mesh_composer='concat' is a str; pass"),
    "composer function": (
        lambda m: ttnn.to_torch(put(m, 8, 32), mesh_composer=ttnn.ConcatMeshToTensor),
        r"is a function; pass ttnn.ConcatMeshToTensor\(mesh_device, dim=0\)",
    ),
    "memory": (lambda m: put(m, 8, 32, memory_config="L1"), r"memory_config='L1' is a str; pass ttnn.DRAM_MEMORY_CONFIG"),
    "buffer type": (
        lambda m: put(m, 8, 32, memory_config=ttnn.BufferType.L1),
        r"is a BufferType; pass ttnn.DRAM_MEMORY_CONFIG or ttnn.L1_MEMORY_CONFIG",
    ),
    "layout": (lambda m: ttnn.from_torch(torch.ones(2), layout="tile"), r"layout='tile' is a str; pass ttnn.TILE_LAYOUT"),
    "as_tensor": (lambda m: ttnn.as_tensor(torch.ones(2), layout="tile"), r"layout='tile' is a str; pass ttnn.TILE_LAYOUT"),
    "program config": (
        lambda m: ttnn.matmul(put(m, 32, 32), put(m, 32, 32), program_config={"in0_block_w": 1}),
        r"program_config={'in0_block_w': 1} is a dict; pass a program config such as ttnn.Matmul",
    ),
    "fidelity": (
        lambda m: ttnn.matmul(put(m, 32, 32), put(m, 32, 32), compute_kernel_config=ttnn.MathFidelity.HiFi4),
        r"is a MathFidelity; pass ttnn.WormholeComputeKernelConfig\(",
    ),
    "fabric": (lambda m: ttnn.set_fabric_config("FABRIC_1D"), r"'FABRIC_1D' is a str; pass ttnn.FabricConfig.FABRIC_1D"),
    "pairs": (lambda m: ttnn.ShardTensor2dMesh(m, mesh_shape=(2, 4), dims=0), r"dims=0 is not a pair; pass a value for"),
    "mesh": (lambda m: ttnn.ShardTensorToMesh("cuda", dim=0), r"mesh_device='cuda' is a str; pass what ttnn.open_mesh"),
    "keyword": (lambda m: ttnn.open_mesh_device(trace_region=1), r"'trace_region'. Did you mean trace_region_size\?"),
    "setting": (lambda m: ttmesh.configure(sistem="t3000"), r"'sistem'. Did you mean system\?"),  # type: ignore[call-arg]
    "argument": (lambda m: ttnn.ShardTensorToMesh(m), r"missing a required argument: 'dim': ShardTensorToMesh\("),
    "torch": (lambda m: ttnn.deallocate(torch.ones(2)), r"is a torch.Tensor; pass a ttnn.Tensor"),
    "list": (lambda m: ttnn.concat(put(m, 32, 32), put(m, 32, 32), dim=0), r"Pass the tensors as a list: \[a, b\]"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLAIN_VALUES)
def test_a_wrong_type_is_named_with_what_to_pass(mesh: Any, mistake: str) -> None:
    call, text = PLAIN_VALUES[mistake]

    with pytest.raises(TypeError, match=text):
        call(mesh)


def test_every_function_that_takes_a_device_names_it_when_it_is_none_of_ours() -> None:
    tried = []
    for name in sorted(set(dir(ttnn)) - QUIET):
        function = getattr(ttnn, name)
        if not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        device = next((p for p in parameters if p in DEVICES), None)
        if device is None or parameters[device].default is not inspect.Parameter.empty:
            continue
        first = next(iter(parameters)) == device
        required = [p.name for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        with pytest.raises((TypeError, ttmesh.MeshError)) as refused:
            function(**{n: "cuda" if n == device else (0, 1) for n in required})
        if first:
            assert "'cuda' is a str" in str(refused.value), f"{name}: {refused.value}"
            assert "open_mesh_device" in str(refused.value), f"{name}: {refused.value}"
        tried.append(name)
    assert len(tried) > 15


TORCH_HABITS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "view": (lambda x: x.view(-1), AttributeError, r"no attribute 'view'; .* Use ttnn.reshape\(tensor, shape\)"),
    "softmax": (lambda x: x.softmax(-1), AttributeError, r"Use ttnn.softmax\(tensor\), or ttnn.to_torch\(tensor\)"),
    "relu": (lambda x: torch.relu(x), TypeError, r"torch.relu got a ttnn.Tensor; .* Call ttnn.relu, or convert it with"),
    "tensor": (lambda x: torch.tensor(x), TypeError, r"has no len\(\); use tensor.shape\[0\], or ttnn.to_torch\(tensor\)"),
    "float": (lambda x: float(x), TypeError, r"not 'Tensor'; tensor.item\(\) gives its value"),
    "int": (lambda x: int(x), TypeError, r"not 'Tensor'; tensor.item\(\) gives its value"),
    "assign": (lambda x: x.__setitem__(0, 1), TypeError, r"does not support item assignment; use ttnn.where"),
    "add": (lambda x: x + torch.ones(2), TypeError, r"input_tensor_b is a torch.Tensor; convert it with ttnn.from_torch"),
    "radd": (lambda x: torch.ones(2) + x, TypeError, r"torch.Tensor; convert it with ttnn.from_torch|got a ttnn.Tensor"),
}  # fmt: skip


@pytest.mark.parametrize("habit", TORCH_HABITS)
def test_what_works_with_torchs_tensors_says_what_to_call_here(mesh: Any, habit: str) -> None:
    call, kind, text = TORCH_HABITS[habit]

    with pytest.raises(kind, match=text):
        call(put(mesh, 32, 32))


def test_names_of_torch_are_no_attributes(mesh: Any) -> None:
    tensor = put(mesh, 32, 32)

    assert not hasattr(tensor, "view")
    assert not hasattr(ttnn.Tensor, "view")
    assert "view" not in dir(tensor)
    assert "reshape" in dir(tensor)


def test_python_suggests_the_attribute_for_a_misspelt_one(mesh: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = put(mesh, 32, 32)

    with pytest.raises(AttributeError) as problem:
        tensor.shap  # noqa: B018

    sys.__excepthook__(problem.type, problem.value, None)
    assert "no attribute 'shap'. Did you mean: 'shape'?" in capsys.readouterr().err


def test_private_names_are_pythons_own_errors(mesh: Any) -> None:
    tensor = put(mesh, 32, 32)

    assert not hasattr(tensor, "__array_interface__")
    with pytest.raises(AttributeError, match=r"'Tensor' object has no attribute '_nothing'$"):
        tensor._nothing  # noqa: B018


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: ttnn.concat([put(m, 32, 32), put(m, 64, 64)]), r"but for dim 0, not \[32, 32\] and \[64, 64\]"),
        (
            lambda m: ttnn.linear(put(m, 32, 32), put(m, 32, 64), bias=put(m, 1, 32)),
            r"dim a: 64, dim b: 32; .* 64 columns",
        ),
        (
            lambda m: ttnn.transformer.scaled_dot_product_attention(
                put(m, 1, 8, 32, 64, dtype=ttnn.bfloat16), *[put(m, 1, 8, 32, 32, dtype=ttnn.bfloat16)] * 2
            ),
            r"K and V hidden dim must match. Got K: 32, V: 32; expected 64, the head size of Q",
        ),
        (lambda m: ttnn.execute_trace(m, 7, cq_id=0), r"expected a captured trace; this mesh has none"),
        (
            lambda m: ttnn.copy_host_to_device_tensor(ttnn.from_torch(torch.ones(64, 64)), put(m, 32, 32)),
            r"different shape: Shape\(\[64, 64\]\); expected Shape\(\[32, 32\]\)",
        ),
        (lambda m: ttnn.ShardTensor2dMesh(m, mesh_shape=(3, 3), dims=(0, 1)), r"does not match the device shape size"),
    ],
    ids=["concat", "bias", "attention", "trace", "copy", "mesh shape"],
)
def test_a_number_that_does_not_fit_is_named(mesh: Any, call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(ttmesh.MeshError, match=text):
        call(mesh)


@pytest.mark.parametrize("memory", ["DRAM", "L1"])
def test_out_of_memory_names_the_lines_that_hold_it(mesh: Any, memory: str) -> None:
    config = getattr(ttnn, f"{memory}_MEMORY_CONFIG")
    side = 16384 if memory == "DRAM" else 2048
    here = inspect.currentframe()
    assert here is not None
    first, held = here.f_lineno + 3, []

    with pytest.raises(ttmesh.MeshError, match="Out of Memory") as refused:
        while True:
            held.append(ttnn.allocate_tensor_on_device(ttnn.Shape([side, side]), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh, config))  # noqa: E501  # fmt: skip

    sizes = f"{len(held) * side * side * 2} B in {len(held)} buffers"
    assert f"allocate_tensor_on_device from test_first_day_mistakes.py:{first + 1} {sizes}" in str(refused.value)


def test_submeshes_may_overlap_as_in_ttnn(mesh: Any) -> None:
    rows, corner = mesh.create_submesh(ttnn.MeshShape(1, 4)), mesh.create_submesh(ttnn.MeshShape(2, 2))

    assert set(rows.get_device_ids()) & set(corner.get_device_ids()) == {4, 0}
