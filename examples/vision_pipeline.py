"""A CNN served from a pipeline: traced, with transfers on a second queue. python examples/vision_pipeline.py"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console
from rich.progress import track
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.nn.batches import batches, place_rows
from ttmesh.nn.pipelines import PipelineConfig, create_pipeline_from_config
from ttmesh.nn.preprocessing import preprocess_model_parameters

console = Console(highlight=False)
SIDE, CHANNELS, CLASSES = 32, 3, 10
CHIPS = 1  # the mesh axis
CONFIGS = {
    "plain": PipelineConfig(use_trace=False),
    "traced": PipelineConfig(use_trace=True),
    "traced, two queues": PipelineConfig(use_trace=True, num_command_queues=2),
    "pipelined I/O": PipelineConfig(True, 2, all_transfers_on_separate_command_queue=True),
}


class Reference(torch.nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv2d(CHANNELS, 16, 3, stride=2, padding=1)
        self.second = torch.nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = torch.nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.second(F.relu(self.first(x)))).mean((2, 3)))


def preprocessor_for(mesh: ttnn.MeshDevice):
    """Every weight on every chip: convolutions as they are, the linear layer transposed."""
    mapper = ttnn.ReplicateTensorToMesh(mesh)

    def preprocess(model: torch.nn.Module, name: str, ttnn_module_args: object) -> dict[str, ttnn.Tensor]:
        if isinstance(model, torch.nn.Conv2d):
            bias = model.bias.reshape(1, 1, 1, -1)
            return {
                "weight": ttnn.from_torch(model.weight, dtype=ttnn.bfloat16, mesh_mapper=mapper),
                "bias": ttnn.from_torch(bias, dtype=ttnn.bfloat16, mesh_mapper=mapper),
            }
        if isinstance(model, torch.nn.Linear):
            pair = (model.weight.T.contiguous(), model.bias.reshape(1, -1))
            weight, bias = (
                ttnn.from_torch(v, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)
                for v in pair
            )
            return {"weight": weight, "bias": bias}
        return {}

    return preprocess


class Model:
    """The reference on a mesh; a call is one batch per chip."""

    def __init__(self, mesh: ttnn.MeshDevice, reference: Reference, batch: int) -> None:
        self.mesh, self.batch = mesh, batch
        self.parameters = preprocess_model_parameters(
            initialize_model=lambda: reference, custom_preprocessor=preprocessor_for(mesh), device=None
        )
        self.kept: dict[str, tuple[ttnn.Tensor, ttnn.Tensor]] = {}  # weights as the device keeps them

    def convolved(self, x: ttnn.Tensor, name: str, channels: tuple[int, int], side: int) -> ttnn.Tensor:
        given = self.parameters[name]
        weight, bias = self.kept.get(name, (given["weight"], given["bias"]))
        made, self.kept[name] = ttnn.conv2d(
            input_tensor=x, weight_tensor=weight, bias_tensor=bias, device=self.mesh, in_channels=channels[0],
            out_channels=channels[1], batch_size=self.batch, input_height=side, input_width=side, kernel_size=(3, 3),
            stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=1, dtype=ttnn.bfloat16,
            memory_config=ttnn.DRAM_MEMORY_CONFIG, return_weights_and_bias=True,
        )  # fmt: skip
        return ttnn.relu(made)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        x = self.convolved(x, "first", (CHANNELS, 16), SIDE)
        x = self.convolved(x, "second", (16, 32), SIDE // 2)
        x = ttnn.reshape(x, (self.batch, 1, (SIDE // 4) ** 2, 32))
        x = ttnn.reshape(ttnn.mean(x, dim=2), (1, 1, self.batch, 32))
        return ttnn.linear(x, self.parameters["head"]["weight"], bias=self.parameters["head"]["bias"])


def serve(count: int, samples: int) -> dict[str, float]:
    """Images per second of every configuration; results are compared with torch's."""
    reference = Reference().eval()
    images = torch.randn(count, CHANNELS, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(images)
    rates = {}
    for name, config in CONFIGS.items():
        mesh = ttnn.open_mesh_device(
            ttnn.MeshShape(1, 2), num_command_queues=config.num_command_queues, trace_region_size=2_000_000
        )
        total = samples * mesh.get_num_devices()
        padded = list(batches(images.permute(0, 2, 3, 1).contiguous(), size=total, parts=total))  # all of one size
        inputs = [
            place_rows(rows.tensors[0], mesh, CHIPS, dtype=ttnn.bfloat16, layout=ttnn.ROW_MAJOR_LAYOUT, on_host=True)
            for rows in track(padded, description=f"{name:>20}", console=console)
        ]
        model = Model(mesh, reference, samples)
        pipeline = create_pipeline_from_config(
            config, model, mesh, ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG
        )
        pipeline.compile(inputs[0])
        start = time.perf_counter()
        results = pipeline.enqueue(inputs).pop_all()
        rates[name] = count / (time.perf_counter() - start)
        composer = ttnn.ConcatMeshToTensor(mesh, dim=2)
        rows = [ttnn.to_torch(result, mesh_composer=composer).float()[0, 0] for result in results]
        got = torch.cat([one.unpad(row) for one, row in zip(padded, rows, strict=True)])
        # bfloat16 weights and activations, three layers
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
        pipeline.cleanup()
        del model, pipeline, results, inputs
        ttnn.close_mesh_device(mesh)
        console.print(f"{name:>20}: {rates[name]:8.0f} images/s, as torch")
    console.print(f"{count} images in every configuration; the last batch was padded to {total}")
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=509)
    parser.add_argument("--samples", type=int, default=8, help="per chip and batch")
    options = parser.parse_args()
    torch.set_num_threads(1)  # small tensors; see ttmesh/showcase/training_curves.py
    serve(options.images, options.samples)


if __name__ == "__main__":
    main()
