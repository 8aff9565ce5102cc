"""A Llama-style decoder with kv caches and rotary embeddings. python examples/models/llama_decoder.py"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.showcase import model_placement

LAYERS, USERS, PROMPT, STEPS, LENGTH = 2, 8, 32, 4, 64
WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY = 256, 8, 4, 512, 512
SIZE = WIDTH // HEADS


@dataclass(frozen=True)
class Scaling:
    """Llama 3's rotary scaling, for sequences longer than those of its first training."""

    factor: float
    low: float
    high: float
    first_length: int

    def scale(self, frequencies: torch.Tensor) -> torch.Tensor:
        """High frequencies unchanged, low ones divided by the factor, interpolated in between."""
        mixture = ((self.first_length * frequencies / (2 * torch.pi) - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * mixture + frequencies / self.factor * (1 - mixture)


@dataclass(frozen=True)
class Sizes:
    """What a model is made for; by default what this example runs."""

    layers: int = LAYERS
    users: int = USERS
    length: int = LENGTH
    width: int = WIDTH
    heads: int = HEADS
    kv_heads: int = KV_HEADS
    hidden: int = HIDDEN
    vocabulary: int = VOCABULARY
    theta: float = 10000.0
    epsilon: float = 1e-5
    head_size: int | None = None
    scaling: Scaling | None = None

    @property
    def size(self) -> int:
        """Of a head."""
        return self.head_size or self.width // self.heads


SIZES = Sizes()
HELD: list[ttnn.Tensor] = []
Weights = dict[str, torch.Tensor]


# -- the model in torch --------------------------------------------------------------------------------------------------


def draw_weights(draw: torch.Generator, sizes: Sizes = SIZES) -> tuple[Weights, list[Weights]]:
    """Embedding, head and last norm; then the weights of every layer, as [in, out]."""
    width, kv, hidden = sizes.width, sizes.kv_heads * sizes.size, sizes.hidden
    shapes = {
        "q": (width, width), "k": (width, kv), "v": (width, kv), "out": (width, width),
        "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width),
    }  # fmt: skip

    def norm() -> torch.Tensor:
        return 1 + torch.randn(1, width, generator=draw) * 0.1

    layers = []
    for _ in range(sizes.layers):
        layer = {name: torch.randn(*shape, generator=draw) * shape[0] ** -0.5 for name, shape in shapes.items()}
        layers.append({**layer, "norm1": norm(), "norm2": norm()})
    embedding = torch.randn(sizes.vocabulary, width, generator=draw)
    head = torch.randn(width, sizes.vocabulary, generator=draw) * width**-0.5
    return {"embedding": embedding, "head": head, "norm": norm()}, layers


def angles(sizes: Sizes = SIZES) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position, [length, size of a head], each angle for a pair of neighbours."""
    frequencies = sizes.theta ** (-torch.arange(0, sizes.size, 2) / sizes.size)
    frequencies = frequencies if sizes.scaling is None else sizes.scaling.scale(frequencies)
    angle = (torch.arange(sizes.length)[:, None] * frequencies).repeat_interleave(2, dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, sizes: Sizes = SIZES) -> torch.Tensor:
    """Rotary embedding of [users, heads, rows, size] whose first row is at position 0."""
    cos, sin = (table[: x.shape[-2]] for table in angles(sizes))
    pairs = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + pairs * sin


def normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def expected_logits(tokens: torch.Tensor, top: Weights, layers: list[Weights], sizes: Sizes = SIZES) -> torch.Tensor:
    """The full sequences at once, without a cache: [users, rows, vocabulary]."""
    x = top["embedding"][tokens]
    for w in layers:
        h = normed(x, w["norm1"], sizes.epsilon)
        q, k, v = ((h @ w[name]).unflatten(-1, (-1, sizes.size)).transpose(1, 2) for name in "qkv")
        q, k = rotate(q, sizes), rotate(k, sizes)
        k, v = (heads.repeat_interleave(sizes.heads // sizes.kv_heads, 1) for heads in (k, v))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2) @ w["out"]
        h = normed(x, w["norm2"], sizes.epsilon)
        x = x + (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
    return normed(x, top["norm"], sizes.epsilon) @ top["head"]


# -- the model on a mesh -------------------------------------------------------------------------------------------------


def rotation_matrix() -> torch.Tensor:
    """(x0, x1) → (-x1, x0) for the pairs of 32 columns."""
    matrix = torch.zeros(1, 1, 32, 32)
    even, odd = torch.arange(0, 32, 2), torch.arange(1, 32, 2)
    matrix[..., even, odd], matrix[..., odd, even] = 1, -1
    return matrix


class Layer:
    """One decoder layer; heads and hidden units are divided over the chips that share the model."""

    def __init__(self, at: model_placement.Placement, w: Weights, sizes: Sizes = SIZES) -> None:
        self.at, self.size, self.epsilon = at, sizes.size, sizes.epsilon
        self.heads, self.kv_heads = sizes.heads // at.weight_shards, sizes.kv_heads // at.weight_shards
        per_chip = [
            torch.cat([w[name].chunk(at.weight_shards, -1)[i] for name in "qkv"], -1) for i in range(at.weight_shards)
        ]
        split = {"qkv": 1, "out": 0, "gate": 1, "up": 1, "down": 0}
        weights = {"qkv": torch.cat(per_chip, -1), **{name: w[name] for name in split if name != "qkv"}}
        self.w = {name: at.weight(value, split[name]) for name, value in weights.items()}
        self.norms = [at.weight(w[name], dtype=ttnn.bfloat16) for name in ("norm1", "norm2")]
        empty = torch.zeros(sizes.users, sizes.kv_heads, sizes.length, sizes.size)
        mapper = at.mapper(batch_dim=0, weight_dim=1)
        self.cache = [
            ttnn.from_torch(empty, dtype=at.weights, layout=ttnn.TILE_LAYOUT, device=at.mesh, mesh_mapper=mapper)
            for _ in range(2)
        ]
        HELD.extend([*self.w.values(), *self.norms, *self.cache])

    def prompt(self, x: ttnn.Tensor, rope: dict[str, ttnn.Tensor]) -> ttnn.Tensor:
        """[users, 1, rows, WIDTH]: attention over the prompts, whose keys and values fill the caches."""
        fused = ttnn.linear(ttnn.rms_norm(x, epsilon=self.epsilon, weight=self.norms[0]), self.w["qkv"])
        q, k, v = ttnn.experimental.nlp_create_qkv_heads(
            fused, num_heads=self.heads, num_kv_heads=self.kv_heads, transpose_k_heads=False
        )
        q, k = (
            ttnn.experimental.rotary_embedding_llama(heads, rope["cos"], rope["sin"], rope["matrix"])
            for heads in (q, k)
        )
        for cache, values in zip(self.cache, (k, v), strict=True):
            held = values if values.dtype == cache.dtype else ttnn.typecast(values, cache.dtype)
            for user in range(x.shape[0]):
                ttnn.fill_cache(cache, held[user : user + 1], user)
        attended = ttnn.transformer.scaled_dot_product_attention(q, k, v)
        merged = ttnn.experimental.nlp_concat_heads(attended)
        x = ttnn.add(x, self.at.total(ttnn.linear(merged, self.w["out"])))
        return self.feed_forward(x)

    def token(self, x: ttnn.Tensor, rope: dict[str, ttnn.Tensor], position: ttnn.Tensor, users: int) -> ttnn.Tensor:
        """[1, 1, users, WIDTH]: one token per user, whose key and value go into the caches first."""
        fused = ttnn.linear(ttnn.rms_norm(x, epsilon=self.epsilon, weight=self.norms[0]), self.w["qkv"])
        q, k, v = ttnn.experimental.nlp_create_qkv_heads_decode(
            fused, num_heads=self.heads, num_kv_heads=self.kv_heads, memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG
        )
        q, k = (
            ttnn.experimental.rotary_embedding_llama(
                heads, rope["cos"], rope["sin"], rope["matrix"], is_decode_mode=True
            )
            for heads in (q, k)
        )
        for cache, values in zip(self.cache, (k, v), strict=True):
            ttnn.experimental.paged_update_cache(cache, values, update_idxs_tensor=position)
        attended = ttnn.transformer.scaled_dot_product_attention_decode(q, *self.cache, cur_pos_tensor=position)
        merged = ttnn.reshape(attended, [1, 1, users, self.heads * self.size])
        x = ttnn.add(x, self.at.total(ttnn.linear(merged, self.w["out"])))
        return self.feed_forward(x)

    def feed_forward(self, x: ttnn.Tensor) -> ttnn.Tensor:
        h = ttnn.rms_norm(x, epsilon=self.epsilon, weight=self.norms[1])
        gate = ttnn.linear(h, self.w["gate"], activation="silu")
        hidden = ttnn.multiply(gate, ttnn.linear(h, self.w["up"]))
        return ttnn.add(x, self.at.total(ttnn.linear(hidden, self.w["down"])))


def one_user_per_core(mesh: ttnn.MeshDevice, users: int, width: int) -> ttnn.MemoryConfig:
    """A tile of rows per core, which is how a step holds its tables."""
    cores = ttnn.num_cores_to_corerangeset(users, mesh.compute_with_storage_grid_size(), row_wise=True)
    shards = ttnn.ShardSpec(cores, (ttnn.TILE_SIZE, width), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)


class Decoder:
    """Embedding, layers, norm and head."""

    def __init__(self, at: model_placement.Placement, top: Weights, layers: list[Weights]) -> None:
        self.at, self.users = at, USERS // at.batches
        self.embedding = ttnn.from_torch(
            top["embedding"], dtype=ttnn.bfloat16, device=at.mesh, mesh_mapper=at.mapper(), layout=ttnn.ROW_MAJOR_LAYOUT
        )
        self.norm, self.head = at.weight(top["norm"], dtype=ttnn.bfloat16), at.weight(top["head"])
        self.layers = [Layer(at, w) for w in layers]
        self.matrix = at.weight(rotation_matrix(), dtype=ttnn.bfloat16)
        repeated = at.weight(rotation_matrix().repeat(1, 1, self.users, 1), dtype=ttnn.bfloat16)
        self.step_matrix = ttnn.to_memory_config(repeated, one_user_per_core(at.mesh, self.users, ttnn.TILE_SIZE))
        HELD.extend([self.embedding, self.norm, self.head, self.matrix, self.step_matrix])

    def rope(self, positions: slice, *, users: int | None = None) -> dict[str, ttnn.Tensor]:
        """cos and sin of positions as a prompt ([1, 1, rows, SIZE]) or as a step ([1, users, 1, SIZE]) needs them."""
        tables = [table[positions][None, None] for table in angles()]
        if users is not None:
            tables = [table.expand(1, users, 1, SIZE).contiguous() for table in tables]
        cos, sin = (self.at.weight(table, dtype=ttnn.bfloat16) for table in tables)
        if users is None:
            return {"cos": cos, "sin": sin, "matrix": self.matrix}
        cos, sin = (ttnn.to_memory_config(table, one_user_per_core(self.at.mesh, users, SIZE)) for table in (cos, sin))
        return {"cos": cos, "sin": sin, "matrix": self.step_matrix}

    def embedded(self, tokens: torch.Tensor, batch_dim: int) -> ttnn.Tensor:
        mapper = self.at.mapper(batch_dim=batch_dim)
        ids = ttnn.from_torch(tokens, dtype=ttnn.uint32, device=self.at.mesh, mesh_mapper=mapper)
        return ttnn.embedding(ids, self.embedding, layout=ttnn.TILE_LAYOUT)

    def logits(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.linear(ttnn.rms_norm(x, epsilon=1e-5, weight=self.norm), self.head)

    def prompt(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the last token of every prompt, [users, VOCABULARY]."""
        rows = tokens.shape[1]
        x = ttnn.reshape(self.embedded(tokens, 0), [self.users, 1, rows, WIDTH])
        rope = self.rope(slice(rows))
        for layer in self.layers:
            x = layer.prompt(x, rope)
        return self.at.whole(self.logits(x))[:, 0, -1]

    def step(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """Logits after one more token of every user, [users, VOCABULARY]."""
        x = ttnn.reshape(self.embedded(tokens[None], 1), [1, 1, self.users, WIDTH])
        rope = self.rope(slice(position, position + 1), users=self.users)
        where = ttnn.from_torch(
            torch.full((self.users,), position, dtype=torch.int32), dtype=ttnn.int32, device=self.at.mesh,
            mesh_mapper=self.at.mapper(),
        )  # fmt: skip
        for layer in self.layers:
            x = layer.token(x, rope, where, self.users)
        return self.at.whole(self.logits(x), batch_dim=2)[0, 0]


def decoder(at: model_placement.Placement) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits after the prompts and after every step, and torch's."""
    HELD.clear()
    draw = torch.Generator().manual_seed(0)
    top, layers = draw_weights(draw)
    tokens = torch.randint(0, VOCABULARY, (USERS, PROMPT + STEPS), generator=draw)

    model = Decoder(at, top, layers)
    got = [model.prompt(tokens[:, :PROMPT])]
    got += [model.step(tokens[:, position], position) for position in range(PROMPT, PROMPT + STEPS)]

    expected = expected_logits(tokens, top, layers)[:, PROMPT - 1 :]
    return torch.stack(got, dim=1), expected


if __name__ == "__main__":
    model_placement.main("Llama decoder", decoder)
