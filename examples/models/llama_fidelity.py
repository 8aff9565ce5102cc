"""A small Llama whose logits depend on math fidelity. python examples/models/llama_fidelity.py [LoFi|HiFi2|HiFi4] [2]"""

from __future__ import annotations

import sys

import torch

import ttmesh.ttnn as ttnn

WIDTH, HEADS, HIDDEN, VOCABULARY, TOKENS = 256, 4, 512, 320, 64


class Linear:
    """Weights on the device and the compute config of every matmul."""

    def __init__(self, device: ttnn.MeshDevice, inputs: int, outputs: int, config: object) -> None:
        weights = torch.randn(inputs, outputs) / inputs**0.5
        self.weights = ttnn.from_torch(weights, dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=device)
        self.config = config

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """Multiply."""
        return ttnn.linear(x, self.weights, compute_kernel_config=self.config)


class Norm:
    """Root mean square norm."""

    def __init__(self, device: ttnn.MeshDevice) -> None:
        ones = torch.ones(1, 1, 1, WIDTH)
        self.weights = ttnn.from_torch(ones, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """Normalise."""
        return ttnn.rms_norm(x, weight=self.weights, epsilon=1e-5)


class Attention:
    """Causal attention of several heads."""

    def __init__(self, device: ttnn.MeshDevice, config: object) -> None:
        self.query, self.key, self.value, self.out = (Linear(device, WIDTH, WIDTH, config) for _ in range(4))
        mask = torch.full((1, 1, TOKENS, TOKENS), -1e9).triu(1)
        self.mask = ttnn.from_torch(mask, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
        self.config = config

    def _heads(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.permute(ttnn.reshape(x, (1, TOKENS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """Attend."""
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        scores = ttnn.matmul(query, ttnn.transpose(key, -2, -1), compute_kernel_config=self.config)
        scores = ttnn.add(ttnn.multiply(scores, (WIDTH // HEADS) ** -0.5), self.mask)
        mixed = ttnn.matmul(ttnn.softmax(scores, dim=-1), value, compute_kernel_config=self.config)
        return self.out(ttnn.reshape(ttnn.permute(mixed, (0, 2, 1, 3)), (1, 1, TOKENS, WIDTH)))


class Mlp:
    """A gated layer."""

    def __init__(self, device: ttnn.MeshDevice, config: object) -> None:
        self.gate, self.up = (Linear(device, WIDTH, HIDDEN, config) for _ in range(2))
        self.down = Linear(device, HIDDEN, WIDTH, config)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """Gate and project."""
        return self.down(ttnn.multiply(ttnn.silu(self.gate(x)), self.up(x)))


class Layer:
    """Attention and a gated layer, each added to what came in."""

    def __init__(self, device: ttnn.MeshDevice, config: object) -> None:
        self.first, self.second = Norm(device), Norm(device)
        self.attention, self.mlp = Attention(device, config), Mlp(device, config)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """One step of the model."""
        x = ttnn.add(x, self.attention(self.first(x)))
        return ttnn.add(x, self.mlp(self.second(x)))


class Llama:
    """Layers and a head."""

    def __init__(self, device: ttnn.MeshDevice, layers: int, config: object) -> None:
        self.layers = [Layer(device, config) for _ in range(layers)]
        self.norm, self.head = Norm(device), Linear(device, WIDTH, VOCABULARY, config)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """Logits of embedded tokens."""
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def run(fidelity: ttnn.MathFidelity, layers: int) -> torch.Tensor:
    """The logits of some random tokens."""
    torch.manual_seed(0)
    device = ttnn.open_device(device_id=0)
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=fidelity, fp32_dest_acc_en=True, packer_l1_acc=True)
    model = Llama(device, layers, config)
    tokens = ttnn.from_torch(
        torch.randn(1, 1, TOKENS, WIDTH), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device
    )
    logits = ttnn.to_torch(model(tokens)).float()
    ttnn.close_device(device)
    return logits


if __name__ == "__main__":
    chosen = getattr(ttnn.MathFidelity, sys.argv[1] if len(sys.argv) > 1 else "LoFi")
    result = run(chosen, int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    print(f"{chosen.name}: logits' norm {float(result.norm()):.4f}")
