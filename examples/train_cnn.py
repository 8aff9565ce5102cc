"""A CNN on drawn digits of MNIST's size, data-parallel over 8 chips. python examples/train_cnn.py"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import ttmesh.ttnn as ttnn
from ttmesh.nn.batches import batches, place_rows
from ttmesh.nn.convolutions import Conv2d
from ttmesh.nn.layers import Layer, Linear
from ttmesh.nn.losses import cross_entropy, loss_value
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.nn.tape import tape
from ttmesh.showcase.training_curves import Curves, console, use_one_thread

SIDE, CLASSES = 28, 10
CHIPS = 1  # the mesh axis
# The seven strokes of a pocket calculator's digits: (row, column, height, width), and which digit has which.
STROKES = [(2, 6, 2, 10), (3, 15, 9, 2), (13, 15, 9, 2), (22, 6, 2, 10), (13, 5, 9, 2), (3, 5, 9, 2), (12, 6, 2, 10)]
DIGITS = ["012345", "12", "01643", "01623", "5612", "05623", "056234", "012", "0123456", "012563"]


def digits(count: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [count, 28, 28, 1], each somewhere else and noisy, and what they show."""
    shapes = torch.zeros(CLASSES, SIDE, SIDE)
    for digit, strokes in enumerate(DIGITS):
        for row, column, height, width in (STROKES[int(stroke)] for stroke in strokes):
            shapes[digit, row : row + height, column : column + width] = 1
    shown = torch.randint(0, CLASSES, (count,), generator=draw)
    moves = torch.randint(-3, 4, (count, 2), generator=draw).tolist()
    images = torch.stack([torch.roll(shapes[n], move, (0, 1)) for n, move in zip(shown.tolist(), moves, strict=True)])
    return (images + 0.3 * torch.randn(images.shape, generator=draw)).unsqueeze(-1), shown


class CNN(Layer):
    """Two convolutions, each with ReLU and a pool, and a linear layer."""

    def __init__(self, mesh: ttnn.MeshDevice, draw: torch.Generator) -> None:
        def drawn(*shape: int, fan_in: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw) * (2 / fan_in) ** 0.5

        self.first = Conv2d(mesh, drawn(8, 1, 3, 3, fan_in=9), torch.zeros(8), padding=1, dtype=ttnn.float32)
        self.second = Conv2d(mesh, drawn(16, 8, 3, 3, fan_in=72), torch.zeros(16), padding=1, dtype=ttnn.float32)
        features = 16 * (SIDE // 4) ** 2
        self.head = Linear(mesh, drawn(features, CLASSES, fan_in=features), torch.zeros(CLASSES), dtype=ttnn.float32)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        size = (x.shape[0], SIDE, SIDE)
        for layer, channels in ((self.first, 8), (self.second, 16)):
            x, size = layer(x, size)
            x = ttnn.typecast(ttnn.relu(x), ttnn.bfloat16)  # pools take no float32
            x = ttnn.max_pool2d(x, *size, channels, [2, 2], [2, 2], [0, 0], [1, 1])
            x = ttnn.typecast(ttnn.to_memory_config(x, ttnn.DRAM_MEMORY_CONFIG), ttnn.float32)
            size = (size[0], size[1] // 2, size[2] // 2)
        rows = ttnn.reshape(ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), (size[0], 16 * size[1] * size[2]))
        return self.head(ttnn.to_layout(rows, ttnn.TILE_LAYOUT))


def train(steps: int, samples: int, out: Path) -> tuple[Curves, float]:
    """The curves, and the share of new digits that are recognised."""
    draw = torch.Generator().manual_seed(0)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    batch = samples * mesh.get_num_devices()
    model = CNN(mesh, draw)
    parameters = model.parameters()
    optimiser = AdamW(parameters, 3e-3)
    composer = ttnn.ConcatMeshToTensor(mesh, dim=0)

    def to_chips(images: torch.Tensor) -> ttnn.Tensor:
        return place_rows(images, mesh, CHIPS, dtype=ttnn.float32, layout=ttnn.ROW_MAJOR_LAYOUT)

    curves = Curves("CNN, data-parallel on 1x8")
    for _ in curves.steps(steps):
        images, shown = digits(batch, draw)
        with tape() as record:
            loss = cross_entropy(model(to_chips(images)), place_rows(shown, mesh, CHIPS))
        parameters.backward(record, loss)
        synchronize_gradients(parameters)
        optimiser.step()
        curves.note(mesh, loss_value(loss))
        parameters.zero_grad()
    # New digits, a number that eight chips do not divide: the last batch is padded, and trimmed again.
    count, right = 2 * batch + 3, 0
    for rows in batches(*digits(count, draw), size=batch, parts=mesh.get_num_devices()):
        images, shown = rows.tensors
        recognised = ttnn.to_torch(model(to_chips(images)), mesh_composer=composer).argmax(-1)
        right += int(rows.unpad(recognised == shown).sum())
    del loss, record, model, parameters, optimiser
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    console.print(f"{right / count:.1%} of {count} new digits are recognised")
    curves.save(out / "train_cnn.png")
    return curves, right / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--samples", type=int, default=16, help="per chip and step")
    parser.add_argument("--out", type=Path, default=Path("curves"), help="folder for the curves")
    options = parser.parse_args()
    use_one_thread()
    train(options.steps, options.samples, options.out)


if __name__ == "__main__":
    main()
