"""A small GPT in two stages of 2x2 chips, batches and weights sharded inside each. python examples/train_stages.py

Micro-batches go through the stages one behind the other, and gradients come back over the same links. Text does not
divide into full batches: the last one of an epoch is padded with rows of weight 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from train_gpt import BATCHES, MODEL, TOKENS, VOCABULARY, WIDTH, Block, text

import ttmesh.ttnn as ttnn
from ttmesh.nn.batches import batches
from ttmesh.nn.layers import Embedding, Layer, LayerNorm, Linear
from ttmesh.nn.losses import cross_entropy
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.parameters import Parameter
from ttmesh.nn.stages import Staged
from ttmesh.showcase.training_curves import Curves, console, use_one_thread

BATCH, SAMPLES = 16, 100  # 100 rows of text: six batches of 16 and one of 4


class Start(Layer):
    """Tokens and positions."""

    def __init__(self, mesh: ttnn.MeshDevice, draw: torch.Generator, dtype: ttnn.DataType) -> None:
        self.tokens = Embedding(mesh, torch.randn(VOCABULARY, WIDTH, generator=draw) * 0.08, axis=MODEL, dtype=dtype)
        self.positions = Parameter(torch.randn(1, 1, TOKENS, WIDTH, generator=draw) * 0.08, mesh, dtype=dtype)

    def __call__(self, tokens: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.add(self.tokens(tokens), self.positions.tensor)


class End(Layer):
    """Norm and head."""

    def __init__(self, mesh: ttnn.MeshDevice, draw: torch.Generator, dtype: ttnn.DataType) -> None:
        self.norm = LayerNorm(mesh, WIDTH, dtype=dtype)
        self.head = Linear(mesh, torch.randn(WIDTH, VOCABULARY, generator=draw) * 0.08, dtype=dtype)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return self.head(self.norm(x))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the token after each."""
    letters = torch.tensor(list(text(20_000).encode()))[: SAMPLES * TOKENS + 1]
    return letters[:-1].reshape(SAMPLES, TOKENS), letters[1:].reshape(SAMPLES, 1, TOKENS)


def train(epochs: int, out: Path, schedule: str = "1f1b", dtype: ttnn.DataType = ttnn.float32) -> Curves:
    """The curves of a run."""
    draw = torch.Generator().manual_seed(0)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    stages = mesh.create_submeshes(ttnn.MeshShape(2, 2))
    layers = [lambda at, made=made: made(at, draw, dtype) for made in (Start, Block, Block, End)]
    model = Staged(stages, layers, cross_entropy, micro_batches=4, schedule=schedule, batch_axis=BATCHES, dtype=dtype)
    optimisers = [AdamW(stage.parameters, 3e-3) for stage in model.stages]
    tokens, targets = rows()
    per_epoch = -(-SAMPLES // BATCH)
    curves = Curves(f"GPT, two stages of 2x2, {schedule}")
    for step in curves.steps(epochs * per_epoch):
        if step % per_epoch == 0:
            order = torch.randperm(SAMPLES, generator=draw)
            epoch = batches(tokens[order], targets[order], size=BATCH, parts=model.parts)
        batch = next(epoch)
        losses = model.differentiate(*batch.tensors, batch.weights)
        model.synchronize_gradients()
        model.clip_gradients(1.0)
        for optimiser in optimisers:
            optimiser.step()
        model.zero_grad()
        curves.note(stages[0], model.mean_loss(losses))
    del losses, optimiser, optimisers, model, stages
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    console.print(f"loss {curves.losses[0]:.3f} → {curves.losses[-1]:.3f}")
    curves.save(out / "train_stages.png")
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12, help="of seven steps each")
    parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    parser.add_argument("--out", type=Path, default=Path("curves"), help="folder for the curves")
    options = parser.parse_args()
    use_one_thread()
    train(options.epochs, options.out, options.schedule)


if __name__ == "__main__":
    main()
