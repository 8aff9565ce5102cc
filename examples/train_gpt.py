"""A small GPT on 2x4 chips, batches over the rows and weights over the columns. python examples/train_gpt.py

The text comes from a small grammar below. After a first eager step the whole step (forward, backward, sums of gradients,
clipping, update) is captured as a trace; batches are written to where the trace reads them.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch

import ttmesh.ttnn as ttnn
from ttmesh.nn.layers import MLP, Attention, Embedding, Layer, LayerNorm, Linear
from ttmesh.nn.losses import cross_entropy, loss_value
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.parameters import Parameter
from ttmesh.nn.synchronise import clip_gradients, synchronize_gradients
from ttmesh.nn.tape import tape
from ttmesh.showcase.training_curves import Curves, console, use_one_thread

VOCABULARY, WIDTH, HEADS, LAYERS, TOKENS, BATCH = 128, 64, 4, 2, 64, 8
BATCHES, MODEL = 0, 1  # mesh axes


def text(words: int) -> str:
    """Sentences of a small grammar."""
    pick = random.Random(0).choice
    sentences = []
    for _ in range(words // 6):
        sentences.append(
            f"{pick(['the', 'a'])} {pick(['small', 'red', 'quiet', 'fast'])} {pick(['chip', 'mesh', 'core', 'link'])} "
            f"{pick(['sends', 'holds', 'adds', 'reads'])} {pick(['a tile', 'two tensors', 'every row', 'no data'])}. "
        )
    return "".join(sentences)


class Block(Layer):
    """Attention and MLP, each behind a norm and around a residual."""

    def __init__(self, mesh: ttnn.MeshDevice, draw: torch.Generator, dtype: ttnn.DataType) -> None:
        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw) * 0.08

        self.norms = [LayerNorm(mesh, WIDTH, dtype=dtype) for _ in range(2)]
        self.attention = Attention(mesh, drawn(WIDTH, 3 * WIDTH), drawn(WIDTH, WIDTH), HEADS, axis=MODEL, dtype=dtype)
        self.mlp = MLP(mesh, drawn(WIDTH, 4 * WIDTH), drawn(4 * WIDTH, WIDTH), ttnn.gelu, axis=MODEL, dtype=dtype)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        x = ttnn.add(x, self.attention(self.norms[0](x)))
        return ttnn.add(x, self.mlp(self.norms[1](x)))


class GPT(Layer):
    """Tokens and positions, blocks, norm and head."""

    def __init__(self, mesh: ttnn.MeshDevice, dtype: ttnn.DataType) -> None:
        draw = torch.Generator().manual_seed(0)
        self.tokens = Embedding(mesh, torch.randn(VOCABULARY, WIDTH, generator=draw) * 0.08, axis=MODEL, dtype=dtype)
        self.positions = Parameter(torch.randn(1, 1, TOKENS, WIDTH, generator=draw) * 0.08, mesh, dtype=dtype)
        self.blocks = [Block(mesh, draw, dtype) for _ in range(LAYERS)]
        self.norm = LayerNorm(mesh, WIDTH, dtype=dtype)
        self.head = Linear(mesh, torch.randn(WIDTH, VOCABULARY, generator=draw) * 0.08, dtype=dtype)

    def __call__(self, tokens: ttnn.Tensor) -> ttnn.Tensor:
        x = ttnn.add(self.tokens(tokens), self.positions.tensor)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    """A model, its optimiser, and the places its batches are written to."""

    def __init__(self, mesh: ttnn.MeshDevice, dtype: ttnn.DataType) -> None:
        self.mesh = mesh
        self.letters = torch.tensor(list(text(20_000).encode()), dtype=torch.int32)
        self.draw = torch.Generator().manual_seed(1)
        self.model = GPT(mesh, dtype)
        self.parameters = self.model.parameters()
        self.optimiser = AdamW(self.parameters, 3e-3)
        self.tokens, self.targets = (rows.to(mesh) for rows in self._batch())

    def _batch(self) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        starts = torch.randint(0, len(self.letters) - TOKENS - 1, (BATCH, 1), generator=self.draw)
        places = starts + torch.arange(TOKENS + 1)
        rows = self.letters[places]
        mapper = ttnn.ShardTensor2dMesh(self.mesh, mesh_shape=tuple(self.mesh.shape), dims=(0, None))
        pair = (rows[:, :-1].contiguous(), rows[:, 1:].reshape(BATCH, 1, TOKENS).contiguous())
        tokens, targets = (ttnn.from_torch(rows, dtype=ttnn.uint32, mesh_mapper=mapper) for rows in pair)
        return tokens, targets

    def feed(self) -> None:
        """Write the next batch."""
        for host, device in zip(self._batch(), (self.tokens, self.targets), strict=True):
            ttnn.copy_host_to_device_tensor(host, device)

    def step(self) -> ttnn.Tensor:
        """One whole step; the loss of each chip."""
        parameters = self.parameters
        with tape() as record:
            loss = cross_entropy(self.model(self.tokens), self.targets)
        parameters.backward(record, loss)
        synchronize_gradients(parameters)
        clip_gradients(parameters, 1.0)
        self.optimiser.step()
        parameters.zero_grad()
        return loss


def train(steps: int, out: Path, dtype: ttnn.DataType = ttnn.float32) -> Curves:
    """The curves of a run."""
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4), trace_region_size=16_000_000)
    training = Training(mesh, dtype)
    training.step()
    console.print("capturing the training step as a trace")
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    loss = training.step()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    curves = Curves("GPT, data x tensor parallel on 2x4")
    for _ in curves.steps(steps):
        training.feed()
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
        curves.note(mesh, loss_value(loss))
    ttnn.release_trace(mesh, trace)
    del loss, training
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    console.print(f"loss {curves.losses[0]:.3f} → {curves.losses[-1]:.3f}")
    curves.save(out / "train_gpt.png")
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--bfloat16", action="store_true", help="bfloat16 compute with float32 master weights")
    parser.add_argument("--out", type=Path, default=Path("curves"), help="folder for the curves")
    options = parser.parse_args()
    use_one_thread()
    train(options.steps, options.out, ttnn.bfloat16 if options.bfloat16 else ttnn.float32)


if __name__ == "__main__":
    main()
