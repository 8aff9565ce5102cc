"""deepseek_moe_fast_reduce_nc: the sum over a chip's experts, split for the reduce_scatter that follows."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import NotEmulatedError, require
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
    name = "DeepseekMoEFastReduceNC input only supports"
    tiled = input_tensor.layout is Layout.TILE
    require(tiled, f"{name} TILE layout.", "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
    taken = input_tensor.dtype in (DataType.BFLOAT16, DataType.BFLOAT8_B)
    wrong = f"{name} specific data types. [BFLOAT16, BFLOAT8_B]"
    require(taken, wrong, "bfloat16 or bfloat8_b", "Convert it with ttnn.typecast.")
    wrong = f"input tensor rank must be greater than 2, but has {rank}"
    require(rank > 2, wrong, "three dims or more", "Reshape it with ttnn.reshape.")
    wrong = f"reduction dim must be between 0 and {rank - 3}, but has {dim}"
    require(0 <= dim <= rank - 3, wrong, f"0 to {rank - 3}", "Choose a dim before the last two.")
    require(
        split_size > 0 and shape[-1] % split_size == 0,
        f"split_size ({split_size}) must be greater than 0 and divide the last dim ({shape[-1]})",
        f"a divisor of {shape[-1]}",
        "Choose another split_size.",
    )
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


@collective("ttnn.experimental.deepseek_moe_fast_reduce_nc_fused", golden=reduction.fast_reduce_experts_fused)
def deepseek_moe_fast_reduce_nc_fused(
    input_tensor: Tensor,
    reduce_dim: int,
    split_size: int,
    output_memory_config: MemoryConfig | None = None,
    scores_tensor: Tensor | None = None,
) -> list[Tensor]:
    """`deepseek_moe_fast_reduce_nc`, which is what TT-NN runs without scores."""
    if scores_tensor is not None:
        raise NotEmulatedError(
            "deepseek_moe_fast_reduce_nc_fused(scores_tensor=...) is not emulated",
            expected="experts' outputs that are weighted already",
            fix="Multiply the input by the scores with ttnn.multiply first.",
        )
    results: list[Tensor] = deepseek_moe_fast_reduce_nc(
        input_tensor, reduce_dim, split_size=split_size, output_memory_config=output_memory_config or DRAM_MEMORY_CONFIG
    )
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
