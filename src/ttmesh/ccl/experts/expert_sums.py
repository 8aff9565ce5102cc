"""deepseek_moe_fast_reduce_nc: the sum over a chip's experts, split for the reduce_scatter that follows."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, mesh_of, run
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.ops.goldens import reduction
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.deepseek_moe_fast_reduce_nc"
TILE = 32


@collective(NAME, golden=reduction.fast_reduce_experts)
def deepseek_moe_fast_reduce_nc(
    input_tensor: Tensor, dim: int, split_size: int, output_memory_config: MemoryConfig | None = None
) -> list[Tensor]:
    """The sum over a dim, split along the last dim into tensors of `split_size` columns."""
    mesh_of(NAME, [input_tensor])
    shape = input_tensor.shape
    rank = len(shape)
    wrong = "input tensor must be tiled"
    require(input_tensor.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
    wrong = f"input tensor rank must be greater than 2, but has {rank}"
    require(rank > 2, wrong, "three dims or more", "Reshape it with ttnn.reshape.")
    wrong = f"reduction dim must be between 0 and {rank - 3}, but has {dim}"
    require(0 <= dim <= rank - 3, wrong, f"0 to {rank - 3}", "Choose a dim before the last two.")
    splits = shape[-1] // split_size
    require(
        splits > 0 and shape[-1] % (splits * TILE) == 0,
        f"input tensor width must be divisible by {max(splits, 1) * TILE}",
        f"a multiple of {max(splits, 1) * TILE}",
        "Pad the rows, or choose another split_size.",
    )
    options = {
        "dim": dim - rank, "splits": splits, "memory_config": output_memory_config or DRAM_MEMORY_CONFIG, "mode": "local",
    }  # fmt: skip
    results: list[Tensor] = run(NAME, _decide, [input_tensor], options)
    return results


def _decide(request: Request) -> Decision:
    dim, splits = request["dim"], request["splits"]
    shape = [*request.tensor.shape]
    shape[dim] = 1
    shape[-1] //= splits
    axes = request.mesh.shape.dims()

    def compute(lanes: torch.Tensor) -> list[torch.Tensor]:
        terms = lanes.movedim(dim, axes).flatten(0, axes - 1)  # [lanes, terms, ...]
        total = lane_sum(terms, (1,), dtype=torch.float32 if lanes.is_floating_point() else None)[:, 0]
        summed = total.reshape(*lanes.shape[:axes], *total.shape[1:]).unsqueeze(dim)
        return [split.contiguous() for split in summed.chunk(splits, -1)]

    specs = tuple(request.result_spec(shape) for _ in range(splits))
    return Decision(specs, compute, {}, request.tensor.tensor_topology(), single=False)
