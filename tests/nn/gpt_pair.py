"""The same small GPT twice: in plain torch and from ttmesh's layers; and one training step of the latter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.nn.layers import MLP, Attention, Embedding, Layer, LayerNorm, Linear
from ttmesh.nn.losses import cross_entropy
from ttmesh.nn.parameters import ParameterSet, collect
from ttmesh.nn.tape import tape

VOCABULARY, WIDTH, HEADS, TOKENS, BATCH = 64, 32, 8, 16, 8
# name -> mesh shape, axis the batch is cut along, axis the weights are cut along
PLACEMENTS = {
    "one chip": ((1, 1), None, None),
    "data parallel": ((1, 8), 1, None),
    "tensor parallel": ((1, 8), None, 1),
    "hybrid": ((2, 4), 0, 1),
}


class TorchGPT(torch.nn.Module):
    """Embedding, one block, norm and head."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)

        def weight(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=draw) * 0.1)

        self.table, self.qkv, self.out = weight(VOCABULARY, WIDTH), weight(WIDTH, 3 * WIDTH), weight(WIDTH, WIDTH)
        self.up, self.down, self.head = weight(WIDTH, 4 * WIDTH), weight(4 * WIDTH, WIDTH), weight(WIDTH, VOCABULARY)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table[tokens]
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.norms[0](x) @ self.qkv).chunk(3, -1)
        )
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2) @ self.out
        x = x + F.gelu(self.norms[1](x) @ self.up) @ self.down
        return self.norms[2](x) @ self.head


class MeshGPT(Layer):
    """The same, weights cut along an axis."""

    def __init__(
        self, mesh: ttnn.MeshDevice, like: TorchGPT, axis: int | None, dtype: ttnn.DataType, mode: str = "host"
    ) -> None:
        self.embedding = Embedding(mesh, like.table, axis=axis, mode=mode, dtype=dtype)
        self.norms = [LayerNorm(mesh, WIDTH, dtype=dtype) for _ in range(3)]
        self.attention = Attention(mesh, like.qkv, like.out, HEADS, axis=axis, mode=mode, dtype=dtype)
        self.mlp = MLP(mesh, like.up, like.down, ttnn.gelu, axis=axis, mode=mode, dtype=dtype)
        self.head = Linear(mesh, like.head, dtype=dtype)

    def __call__(self, tokens: ttnn.Tensor) -> ttnn.Tensor:
        x = self.embedding(tokens)
        x = ttnn.add(x, self.attention(self.norms[0](x)))
        x = ttnn.add(x, self.mlp(self.norms[1](x)))
        return self.head(self.norms[2](x))


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and what follows them."""
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(step))
    return tokens.int(), tokens.roll(-1, 1).reshape(BATCH, 1, TOKENS).int()


def torch_losses(steps: int, *, clip: float | None = None, lr: float = 1e-3) -> list[float]:
    """The loss curve of plain torch."""
    model = TorchGPT()
    optimiser = torch.optim.AdamW(model.parameters(), lr)
    losses = []
    for step in range(steps):
        tokens, targets = batch_of(step)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten().long())
        optimiser.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        losses.append(loss.item())
    return losses


@contextlib.contextmanager
def opened(shape: tuple[int, int], *, fabric: bool = False, **options: int) -> Iterator[ttnn.MeshDevice]:
    """A mesh that closes itself, and with it its fabric."""
    if fabric:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(*shape), **options)
    try:
        yield mesh
    finally:
        ttnn.close_mesh_device(mesh)


class Trainer:
    """The model on a mesh with its inputs at fixed places."""

    def __init__(
        self, mesh: ttnn.MeshDevice, placement: str, dtype: ttnn.DataType = ttnn.float32, mode: str = "host"
    ) -> None:
        _, self.batch_axis, axis = PLACEMENTS[placement]
        self.mesh, self.mode = mesh, mode
        self.model = MeshGPT(mesh, TorchGPT(), axis, dtype, mode)
        self.parameters = ParameterSet(self.model.named_parameters())
        self.tokens, self.targets = (self._host(part).to(mesh) for part in batch_of(0))

    def _host(self, values: torch.Tensor) -> ttnn.Tensor:
        dims = tuple(0 if axis == self.batch_axis else None for axis in range(2))
        mapper = ttnn.ShardTensor2dMesh(self.mesh, mesh_shape=tuple(self.mesh.shape), dims=dims)
        return ttnn.from_torch(values, dtype=ttnn.uint32, mesh_mapper=mapper)

    def feed(self, step: int) -> None:
        """Write a batch where the model reads it."""
        for values, tensor in zip(batch_of(step), (self.tokens, self.targets), strict=True):
            ttnn.copy_host_to_device_tensor(self._host(values), tensor)

    def differentiate(
        self, tokens: ttnn.Tensor | None = None, targets: ttnn.Tensor | None = None, seed: float | None = None
    ) -> ttnn.Tensor:
        """Forward and backward; gradients are added to those that are there."""
        with tape() as record:
            logits = self.model(self.tokens if tokens is None else tokens)
            loss = cross_entropy(logits, self.targets if targets is None else targets)
        gradients = record.backward(loss, [p.tensor for p in self.parameters.values()], seed)
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            parameter.accumulate(gradient)
        return loss

    def mean(self, loss: ttnn.Tensor) -> float:
        return ttnn.to_torch(loss, mesh_composer=ttnn.ConcatMeshToTensor(self.mesh, 0)).mean().item()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: collect(p.tensor, p.shard_dims) for name, p in self.parameters.items()}
