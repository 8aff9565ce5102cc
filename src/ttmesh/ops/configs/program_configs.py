"""Program configs of norms, softmax and attention; their blocks and grids change no value."""

from __future__ import annotations

from dataclasses import dataclass

from ttmesh.base.cores import CoreCoord, CoreRangeSet
from ttmesh.base.dtypes import PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.tensor.spec.memory_config import ShardSpec


@dataclass
class LayerNormDefaultProgramConfig:
    """Interleaved layer norm."""

    legacy_reduction: bool = False
    legacy_rsqrt: bool = False
    use_welford: bool = False


@dataclass
class LayerNormShardedMultiCoreProgramConfig:
    """Layer norm on an L1-sharded tensor."""

    compute_with_storage_grid_size: CoreCoord | tuple[int, int]
    subblock_w: int
    block_h: int
    block_w: int
    inplace: bool = False
    legacy_reduction: bool = False
    legacy_rsqrt: bool = False
    use_welford: bool = False


LayerNormProgramConfig = (LayerNormDefaultProgramConfig, LayerNormShardedMultiCoreProgramConfig)


def create_layernorm_program_config(
    shard_spec: ShardSpec | None = None, tile_height: int = 32, tile_width: int = 32
) -> LayerNormDefaultProgramConfig | LayerNormShardedMultiCoreProgramConfig:
    """The config that layer_norm chooses for a tensor sharded like this."""
    if shard_spec is None:
        return LayerNormDefaultProgramConfig()
    box = shard_spec.grid.bounding_box().grid_size()
    block_h, block_w = shard_spec.shape[0] // tile_height, shard_spec.shape[1] // tile_width
    subblock_w = next(width for width in (4, 3, 2, 1) if block_w % width == 0)
    return LayerNormShardedMultiCoreProgramConfig(box, subblock_w, block_h, block_w)


class LayerNormType(PrintedEnum):
    """Layer norm or RMS norm."""

    LAYERNORM = 0
    RMSNORM = 1


class DistributedLayerNormStage(PrintedEnum):
    """Before or after the statistics are gathered."""

    NOT_DISTRIBUTED = 0
    PRE_ALL_GATHER = 1
    POST_ALL_GATHER = 2


@dataclass
class SoftmaxDefaultProgramConfig:
    """Interleaved softmax."""


@dataclass
class SoftmaxShardedMultiCoreProgramConfig:
    """Softmax on an L1-sharded tensor."""

    compute_with_storage_grid_size: CoreCoord | tuple[int, int]
    subblock_w: int
    block_h: int
    block_w: int


SoftmaxProgramConfig = (SoftmaxDefaultProgramConfig, SoftmaxShardedMultiCoreProgramConfig)


@dataclass
class SDPAProgramConfig:
    """Chunk sizes and grid of attention; they determine its circular buffers."""

    compute_with_storage_grid_size: CoreCoord | tuple[int, int]
    sub_core_grids: CoreRangeSet | None = None
    q_chunk_size: int = 32
    k_chunk_size: int = 32
    exp_approx_mode: bool | None = None
    max_cores_per_head_batch: int = 16

    def __post_init__(self) -> None:
        for size in (self.q_chunk_size, self.k_chunk_size):
            if size % 32:
                raise MeshError(
                    f"q_chunk_size and k_chunk_size must be divisible by TILE_SIZE. Got {size}",
                    expected="multiples of 32 (0 lets the operation choose)",
                    fix="Round the chunk size up.",
                )


@dataclass
class PagedCacheGeometryOverride:
    """Block size and heads of a paged cache that differ from its shape."""

    block_size: int
    num_kv_heads: int
