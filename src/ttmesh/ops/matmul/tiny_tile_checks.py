"""What a matmul requires of operands in tiles of fewer rows or columns than 32."""

from __future__ import annotations

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType
from ttmesh.base.errors import require
from ttmesh.ops.configs.matmul_program_configs import (
    MatmulMultiCoreReuseMultiCast1DProgramConfig,
    MatmulMultiCoreReuseMultiCastProgramConfig,
)
from ttmesh.tensor.spec.tensor_spec import TensorSpec

MULTICAST = (MatmulMultiCoreReuseMultiCast1DProgramConfig, MatmulMultiCoreReuseMultiCastProgramConfig)


def check_tiny_tiles(config: object, a: TensorSpec, b: TensorSpec) -> None:
    """Raise TT-NN's errors for tiles that its kernels do not take; `config` is the given or the chosen one."""
    height, width = a.tile.tile_shape[0], b.tile.tile_shape[1]
    for spec, name, extent in ((a, "in0 tile height", height), (b, "in1 tile width", width)):
        wrong = f"BFLOAT4_B matmul requires {name} >= 4 (got {extent})"
        require(spec.dtype is not DataType.BFLOAT4_B or extent >= 4, wrong, "at least 4", "Use larger tiles.")
    if (height, width) == (32, 32):
        return
    rows = b.tile.tile_shape[0]
    wrong = f"matmul does not support transposed in1 with tile width 16 (in1 tile is {rows}x16 with transpose)"
    require(not (b.tile.transpose_tile and width == 16), wrong, "tiles of 32 columns", "Disable transpose_tile.")
    wrong = (
        f"matmul tiny-tile combo with in1 dtype DataType::{b.dtype.name} and tile_h {height} is not currently supported on "
        "the mcast program config path (requires tile_h >= 16)"
    )
    refused = b.dtype in BLOCK_FLOATS and isinstance(config, MULTICAST) and height < 16
    require(
        not refused, wrong, "tiles of 16 or 32 rows", "Use a MatmulMultiCoreReuseProgramConfig or bfloat16 weights."
    )
