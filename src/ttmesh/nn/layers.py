"""Parallel layers: linear layers sharded by columns or rows, embeddings by vocabulary, attention by heads.

A layer holds `Parameter`s and is called with tensors. `axis` is the mesh axis that shards the layer (tensor
parallel); without one the layer is replicated. Activations between layers are replicated along that axis.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ttmesh.base.dtypes import DataType, bfloat16
from ttmesh.base.errors import ShapeError
from ttmesh.ccl.collectives.reduce_gather import all_reduce
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.autograd.vocabulary_lookup import vocabulary_lookup
from ttmesh.nn.parameters import Parameter, ParameterSet, place, shard_along
from ttmesh.ops.attention.sdpa_prefill import causal_attention
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.matmul.matmul import linear
from ttmesh.ops.movement.permute import permute
from ttmesh.ops.movement.reshape import reshape
from ttmesh.ops.norm.layer_norm import layer_norm
from ttmesh.tensor.tensor import Tensor


class Layer:
    """A named set of parameters and inner layers."""

    def named_parameters(self, prefix: str = "") -> dict[str, Parameter]:
        """Every parameter of this layer and of its inner layers."""
        found: dict[str, Parameter] = {}
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                found[prefix + name] = value
            elif isinstance(value, Layer):
                found |= value.named_parameters(f"{prefix}{name}.")
            elif isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, Layer):
                        found |= item.named_parameters(f"{prefix}{name}.{i}.")
        return found

    def parameters(self) -> ParameterSet:
        """The same parameters as a ParameterSet, for optimisers and synchronize_gradients."""
        return ParameterSet(self.named_parameters())


class Linear(Layer):
    """y = x · W + b. shard="columns" shards the outputs, shard="rows" the inputs, whose results are summed."""

    def __init__(
        self,
        mesh: MeshDevice,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        shard: str | None = None,
        axis: int | None = None,
        mode: str = "fabric",
        dtype: DataType = bfloat16,
    ) -> None:
        if shard not in (None, "columns", "rows"):
            raise ShapeError(
                f"shard={shard!r} of a linear layer",
                expected="'columns' (shards the outputs), 'rows' (shards the inputs) or None (replicates)",
                fix="Pass one of these values as shard.",
            )
        weight_dims = None if shard is None or axis is None else shard_along(mesh, axis, 0 if shard == "rows" else 1)
        self._axis, self._mode = find_summed_axis(mesh, axis) if shard == "rows" else None, mode
        bias_dims = None if shard != "columns" or axis is None else shard_along(mesh, axis, 1)
        self.weight = Parameter(weight, mesh, weight_dims, dtype)
        self.bias = None if bias is None else Parameter(bias.reshape(1, -1), mesh, bias_dims, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """The output; with shard="rows" it is summed over the axis before the bias is added."""
        bias = None if self.bias is None else self.bias.tensor
        if self._axis is None:
            output: Tensor = linear(x, self.weight.tensor, bias=bias)
            return output
        total: Tensor = all_reduce(linear(x, self.weight.tensor), cluster_axis=self._axis, mode=self._mode)
        return total if bias is None else binary["add"](total, bias)


def find_summed_axis(mesh: MeshDevice, axis: int | None) -> int | None:
    """The axis over which a sharded layer sums; None where it has one chip, whose result is the sum already."""
    return None if axis is None or mesh.shape[axis] == 1 else axis


class LayerNorm(Layer):
    """Layer norm over the last dim; replicated."""

    def __init__(self, mesh: MeshDevice, size: int, *, dtype: DataType = bfloat16) -> None:
        self.weight = Parameter(torch.ones(1, size, dtype=torch.float32, device="cpu"), mesh, dtype=dtype)
        self.bias = Parameter(torch.zeros(1, size, dtype=torch.float32, device="cpu"), mesh, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised tensor."""
        made: Tensor = layer_norm(x, weight=self.weight.tensor, bias=self.bias.tensor, epsilon=1e-5)
        return made


class Embedding(Layer):
    """Embedding lookup; with an axis the vocabulary is sharded and the chips' results are summed."""

    def __init__(
        self,
        mesh: MeshDevice,
        table: torch.Tensor,
        *,
        axis: int | None = None,
        mode: str = "fabric",
        dtype: DataType = bfloat16,
    ) -> None:
        shards = 1 if axis is None else mesh.shape[axis]
        if table.shape[0] % shards:
            raise ShapeError(
                f"a vocabulary of {table.shape[0]} cannot be sharded over {shards} chips",
                expected=f"a multiple of {shards}",
                fix="Pad the table with unused rows.",
            )
        self._axis, self._mode = find_summed_axis(mesh, axis), mode
        shard_dims = None if axis is None else shard_along(mesh, axis, 0)
        self.table = Parameter(table, mesh, shard_dims, dtype)
        starts = torch.arange(shards, device="cpu").reshape(shards, 1) * (table.shape[0] // shards)
        self._starts = place(starts.int(), mesh, self.table.shard_dims, DataType.INT32)

    def __call__(self, tokens: Tensor) -> Tensor:
        """One row per token."""
        rows = vocabulary_lookup(tokens, self.table.tensor, self._starts)
        return rows if self._axis is None else all_reduce(rows, cluster_axis=self._axis, mode=self._mode)


class Attention(Layer):
    """Causal self-attention over [batch, 1, tokens, size]; with an axis the heads are sharded."""

    def __init__(
        self,
        mesh: MeshDevice,
        qkv: torch.Tensor,
        out: torch.Tensor,
        heads: int,
        *,
        axis: int | None = None,
        mode: str = "fabric",
        dtype: DataType = bfloat16,
    ) -> None:
        shards = 1 if axis is None else mesh.shape[axis]
        size = qkv.shape[0]
        if heads % shards:
            raise ShapeError(
                f"{heads} heads over {shards} chips",
                expected=f"a multiple of {shards} heads",
                fix="Change the number of heads, or shard over another mesh axis.",
            )
        if size % heads or qkv.shape[1] != 3 * size:
            raise ShapeError(
                f"{heads} heads of weights {list(qkv.shape)}",
                expected=f"[size, 3 * size] with a size that {heads} divides",
                fix="Change the number of heads or the shape of the weights.",
            )
        self._local_heads, self._depth = heads // shards, size // heads
        # Columns in the order (head, q/k/v, depth): sharding by columns gives each chip complete heads, and a checkpoint
        # fits any number of chips.
        order = qkv.reshape(size, 3, heads, self._depth).transpose(1, 2).reshape(size, -1)
        self.qkv = Linear(mesh, order, shard="columns", axis=axis, mode=mode, dtype=dtype)
        self.out = Linear(mesh, out, shard="rows", axis=axis, mode=mode, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """The attention output of each token over itself and the tokens before it."""
        batch, tokens = x.shape[0], x.shape[-2]
        heads, depth = self._local_heads, self._depth
        qkv = reshape(self.qkv(x), (batch, tokens, heads, 3 * depth))
        by_head = permute(qkv, (0, 2, 1, 3))
        q, k, v = (by_head[:, :, :, i * depth : (i + 1) * depth] for i in range(3))
        mixed = causal_attention(input_tensor_q=q, input_tensor_k=k, input_tensor_v=v)
        flat = reshape(permute(mixed, (0, 2, 1, 3)), (batch, 1, tokens, heads * depth))
        return self.out(flat)


class MLP(Layer):
    """Two linear layers with an activation between, the first sharded by columns, the second by rows."""

    def __init__(
        self,
        mesh: MeshDevice,
        up: torch.Tensor,
        down: torch.Tensor,
        activation: Callable[[Tensor], Tensor],
        *,
        axis: int | None = None,
        mode: str = "fabric",
        dtype: DataType = bfloat16,
    ) -> None:
        self._activation = activation
        self.up = Linear(mesh, up, shard="columns", axis=axis, mode=mode, dtype=dtype)
        self.down = Linear(mesh, down, shard="rows", axis=axis, mode=mode, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Both layers."""
        return self.down(self._activation(self.up(x)))
