"""Every Python block of the documents ttmesh was created from runs as printed.

The documents lie beside the checkout (../shared/seeds); elsewhere these tests skip. A block gets only what a reader must
supply: a model, a batch, fixtures.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh import dropin

ROOT = Path(__file__).parent.parent
SEEDS = ROOT.parent / "shared" / "seeds"
SOURCE = str(ROOT / "src")

pytestmark = pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed documents are not beside this checkout")


def blocks(number: str) -> list[str]:
    (document,) = SEEDS.glob(f"{number}_*.txt")
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def _as_ttnn(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    known = set(sys.modules)
    dropin.install(force=True)
    yield
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("ttnn", "models"):
            del sys.modules[name]
    if ttnn.GetDefaultDevice() is not None:
        ttnn.SetDefaultDevice(None)


def pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten().float(), b.detach().flatten().float()]))[0, 1])


def test_seed_000_method_2_opens_a_mesh_led_by_device_5() -> None:
    space: dict[str, Any] = {}

    exec(blocks("000")[0], space)

    mesh = space["mesh_device"]
    assert space["physical_device_ids"] == [5, 0, 1, 2, 3, 4, 6, 7]
    assert mesh.reference_device() == 5
    ttnn.close_mesh_device(mesh)


def test_seed_000_methods_3_and_4_work_as_a_conftest_and_a_test(tmp_path) -> None:
    method_3 = "import os\nimport pytest\nimport ttnn\n" + "\n".join(blocks("000")[1:3])
    galaxy = "\n@pytest.fixture\ndef galaxy_type():\n    return None\n"
    (tmp_path / "conftest.py").write_text(method_3 + galaxy)
    (tmp_path / "test_four.py").write_text("import pytest\n" + blocks("000")[3])
    env = {**os.environ, "PYTHONPATH": SOURCE, "TT_COORDINATOR_DEVICE_ID": "3"}

    command = [sys.executable, "-m", "pytest", "-p", "ttmesh.testing.as_ttnn", "-q", "-s", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)

    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert "Using device 3 as coordinator" in done.stdout


def test_seed_000_performance_loop_and_troubleshooting_run(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TT_COORDINATOR_DEVICE_ID", "0")
    led = []

    def run_inference_benchmark() -> float:
        with ttnn.create_mesh_device(ttnn.MeshShape(1, 8)) as mesh:
            led.append(mesh.reference_device())
        return 1.0

    exec(blocks("000")[4], {"os": os, "run_inference_benchmark": run_inference_benchmark})
    exec(blocks("000")[5], {})

    assert led == list(range(8))
    assert "Available devices: [0, 1, 2, 3, 4, 5, 6, 7]" in capsys.readouterr().out


class Reader:
    """What a reader of seed 002 must supply: weights, a batch, a reference model and the model itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.reference = torch.nn.Linear(64, 32)
        self.batch = torch.randn(8, 1, 32, 64)
        self.space: dict[str, Any] = {
            "torch": torch,
            "torch_weight": torch.randn(64, 32),
            "torch_input": self.batch,
            "batch": self.batch,
            "reference_model": self.reference,
            "model": self.model,
            "input_shape": (1, 1, 64, 384),
        }

    def model(self, x: ttnn.Tensor) -> ttnn.Tensor:
        mesh, parameters = self.space["mesh_device"], self.space["parameters"]
        x = ttnn.to_layout(ttnn.to_device(x, mesh), ttnn.TILE_LAYOUT)
        weight, bias = (ttnn.to_device(parameters[name], mesh) for name in ("weight", "bias"))
        return ttnn.linear(x, weight, bias=ttnn.to_layout(bias, ttnn.TILE_LAYOUT), transpose_b=True)


def test_seed_002_runs_block_by_block_and_the_gathered_output_equals_torch() -> None:
    reader, code = Reader(), blocks("002")
    space = reader.space
    exec("from ttnn.model_preprocessing import preprocess_model_parameters", space)

    for block in code[:4]:
        exec(block, space)
    space["distributed_tensor"] = space["output"]
    for block in code[4:7]:
        exec(block, space)
    exec(code[8], space)  # closes the mesh; the example that follows in the text opens its own

    expected = reader.reference(reader.batch)
    assert pcc(space["output_torch"], expected) > 0.99
    assert pcc(space["gathered"], expected) > 0.99
    assert len(space["tensors_list"]) == 2
    assert pcc(torch.cat(list(space["tensors_list"])), expected) > 0.99


def test_seed_002_vision_example_runs_and_equals_torch() -> None:
    torch.manual_seed(0)
    reference = torch.nn.Conv2d(3, 16, 3, padding=1)
    batch_size, num_devices, channels, height, width = 2, 2, 3, 16, 16

    def create_preprocessor(mesh_device, mesh_mapper):
        def preprocessor(model, name, ttnn_module_args):
            weight = ttnn.from_torch(model.weight, dtype=ttnn.bfloat16, mesh_mapper=mesh_mapper)
            bias = ttnn.from_torch(model.bias.reshape(1, 1, 1, -1), dtype=ttnn.bfloat16, mesh_mapper=mesh_mapper)
            return {"weight": weight, "bias": bias}

        return preprocessor

    def create_model_configs(parameters, input_height, input_width, batch_size):
        return {"parameters": parameters, "height": input_height, "width": input_width, "batch": batch_size}

    def create_model(configs, mesh_device):
        def run(x):
            rows = ttnn.permute(ttnn.to_device(x, mesh_device), (0, 2, 3, 1))
            flat = ttnn.reshape(rows, (1, 1, configs["batch"] * configs["height"] * configs["width"], channels))
            out = ttnn.conv2d(
                input_tensor=flat,
                weight_tensor=configs["parameters"].weight,
                bias_tensor=configs["parameters"].bias,
                device=mesh_device,
                in_channels=3,
                out_channels=16,
                batch_size=configs["batch"],
                input_height=configs["height"],
                input_width=configs["width"],
                kernel_size=(3, 3),
                stride=(1, 1),
                padding=(1, 1),
            )
            rows = ttnn.to_layout(out, ttnn.ROW_MAJOR_LAYOUT)
            return ttnn.reshape(rows, (configs["batch"], configs["height"], configs["width"], 16))

        return run

    space: dict[str, Any] = {
        "torch": torch,
        "ttnn": ttnn,
        "reference_model": reference,
        "create_preprocessor": create_preprocessor,
        "create_model_configs": create_model_configs,
        "create_model": create_model,
        "input_height": height,
        "input_width": width,
        "batch_size": batch_size,
        "num_devices": num_devices,
        "C": channels,
        "H": height,
        "W": width,
    }
    exec("from ttnn.model_preprocessing import preprocess_model_parameters", space)

    exec(blocks("002")[7], space)
    exec(blocks("002")[8], space)

    expected = reference(space["batch_input"]).permute(0, 2, 3, 1)
    assert pcc(space["output_torch"], expected) > 0.99


READER_SCRIPT = """
import torch
import ttnn
from ttnn.model_preprocessing import preprocess_model_parameters

torch.manual_seed(0)
reference_model = torch.nn.Linear(64, 32)
batch = torch_input = torch.randn(8, 1, 32, 64)
torch_weight = torch.randn(64, 32)

def model(x):
    x = ttnn.to_layout(ttnn.to_device(x, mesh_device), ttnn.TILE_LAYOUT)
    weight, bias = (ttnn.to_device(parameters[name], mesh_device) for name in ("weight", "bias"))
    return ttnn.linear(x, weight, bias=ttnn.to_layout(bias, ttnn.TILE_LAYOUT), transpose_b=True)

{blocks}

expected = reference_model(batch).detach()
pair = torch.stack([output_torch.flatten().float(), expected.flatten()])
print("PCC", float(torch.corrcoef(pair)[0, 1]))
{cleanup}
"""


def test_seed_002_saved_as_a_script_runs_under_ttmesh_run(tmp_path) -> None:
    code = blocks("002")
    script = tmp_path / "seed_002.py"
    script.write_text(READER_SCRIPT.format(blocks="\n".join(code[:4]), cleanup=code[8]))

    command = [sys.executable, "-m", "ttmesh", "run", str(script)]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("PCC")[1]) >= 0.99


def test_documents_001_and_003_have_no_python_blocks() -> None:
    assert blocks("001") == blocks("003") == []
