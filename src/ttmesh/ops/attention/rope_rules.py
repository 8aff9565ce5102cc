"""What rotary embeddings accept, in TT-NN's order and words."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.attention.head_rules import RESHARD, output_config
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.spec_checks import check_shard_tiles
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
HEIGHT, WIDTH, INTERLEAVED = (
    TensorMemoryLayout.HEIGHT_SHARDED,
    TensorMemoryLayout.WIDTH_SHARDED,
    TensorMemoryLayout.INTERLEAVED,
)
CACHES = "Give both caches the same shape and the input's last dim."
CORES = "Shard it by height, one user per core."


def check_rotary(call: Call) -> None:
    """rotary_embedding: caches of the input's width that reach far enough, no shards by width."""
    x, cos, sin = call.specs[:3]
    token, width = call["token_index"], x.padded_shape[-1]
    wrong = (
        f"Input X dimension ({width}) must be either {TILE} (single tile) or divisible by {2 * TILE} (rotate_half midpoint "
        "must align with a tile boundary)."
    )
    require(
        width == TILE or width % (2 * TILE) == 0, wrong, f"{TILE}, or a multiple of {2 * TILE}", "Pad the head size."
    )
    wrong = (
        f"Cosine and Sine cache dimensions must match. Cos cache dimensions: {cos.padded_shape}, Sin cache dimensions: "
        f"{sin.padded_shape}."
    )
    require(tuple(cos.shape) == tuple(sin.shape), wrong, "equal shapes", CACHES)
    shape = cos.padded_shape
    wrong = f"Cosine cache dimensions must match input dimensions. Expected (1, 1, {width}), but got {shape}."
    require(shape[0] == 1 and shape[1] == 1 and shape[-1] == width, wrong, f"[1, 1, rows, {width}]", CACHES)
    if token is not None:
        rows = x.padded_shape[0]
        wrong = f"When token index is provided, sequence length must be 1. Current sequence length: {rows}."
        require(rows == 1, wrong, "[1, users, 1, dim]", "Pass one token at a time.")
        wrong = f"Cosine cache must cover the token index. Token index: {token}, Cos cache sequence length: {cos.shape[-2]}."
        require(cos.shape[-2] > token, wrong, f"more than {token} rows", "Make longer caches.")
    else:
        wrong = (
            f"Cosine cache must cover the input sequence length. Input sequence length: {x.shape[-2]}, Cos cache sequence "
            f"length: {cos.shape[-2]}."
        )
        require(cos.shape[-2] >= x.shape[-2], wrong, f"{x.shape[-2]} rows or more", "Make longer caches.")
    for spec in (x, cos, sin):
        check_shard_tiles(spec.memory_config, Layout.TILE, None)  # rows are tilized
    _check_rotary_memory(call, x)


def _check_rotary_memory(call: Call, x: TensorSpec) -> None:
    shards, layout, output = x.memory_config.shard_spec, x.memory_config.memory_layout, output_config(call)
    if shards is not None:
        wrong = f"Input tensor memory layout must not be WIDTH_SHARDED but got TensorMemoryLayout::{layout.name}"
        require(layout is not WIDTH, wrong, "interleaved memory, or shards of whole rows", RESHARD)
        width = x.padded_shape[-1]
        wrong = f"Input tensor shard width ({shards.shape[1]}) must equal padded width ({width})"
        require(shards.shape[1] == width, wrong, "shards of whole rows", RESHARD)
        require(prod(x.padded_shape[:-1]) % shards.shape[0] == 0, "Error", "equal shards", RESHARD)
    wrong = (
        f"Output memory config layout must not be WIDTH_SHARDED but got TensorMemoryLayout::{output.memory_layout.name}"
    )
    require(output.memory_layout is not WIDTH, wrong, "interleaved results, or shards of whole rows", RESHARD)


def check_llama(call: Call) -> None:
    """rotary_embedding_llama: bfloat16; shards of one user per core for decode, interleaved inputs for prefill."""
    x, cos, sin, matrix = call.specs[:4]
    require(x.shape[-1] <= 256, "Head dim must be less than 256", "256 or less", "Split the heads.")
    same = all(spec.dtype is DataType.BFLOAT16 for spec in (x, cos, sin, matrix))
    wrong = f"All input tensors must have dtype = bfloat16; got {[spec.dtype for spec in (x, cos, sin, matrix)]}"
    require(same, wrong, "bfloat16", "Convert them with ttnn.typecast.")
    wrong = "Input tensor and output tensor must have same memory layout"
    output = output_config(call).memory_layout
    require(x.memory_config.memory_layout is output, wrong, "the input's memory layout", "Leave memory_config out.")
    require(tuple(cos.shape) == tuple(sin.shape), "Cos and Sin dims must match", "equal shapes", CACHES)
    if call["is_decode_mode"]:
        _check_llama_decode(call, x, cos, sin, matrix)
    else:
        _check_llama_prefill(x, cos, matrix)


def _check_llama_decode(call: Call, x: TensorSpec, cos: TensorSpec, sin: TensorSpec, matrix: TensorSpec) -> None:
    require(x.shape[-1] % TILE == 0, "Head dim must be a multiple of TILE_WIDTH in decode mode", "32, 64, …", "Pad it.")
    wrong = (
        "rotary_embedding_llama currently only supports sharded inputs in decode mode, and therefore, seq_len (in dim 0) "
        "must be 1."
    )
    require(x.shape[0] == 1, wrong, "[1, users, heads, dim]", "Reshape the input.")
    names = ("Sharded inputs", "cos tensor", "sin tensor", "transformation matrix")
    for spec, name in zip((x, cos, sin, matrix), names, strict=True):
        layout = spec.memory_config.memory_layout
        require(layout is HEIGHT, f"{name} for RoPE must be HEIGHT_SHARDED.", "HEIGHT_SHARDED", CORES)
    size = call.mesh.compute_with_storage_grid_size()
    wrong = (
        "In decode mode, RoPE is parallelized over batch dimension, and therefore, batch size must be less than or equal to "
        "the number of cores"
    )
    require(x.shape[1] <= size.x * size.y, wrong, f"{size.x * size.y} users or fewer", "Split the users.")
    wrong = "Cos and Sin must have the same batch size as the input"
    require(x.shape[1] == cos.shape[1], wrong, f"{x.shape[1]} rows", CACHES)
    wrong = "In decode mode, RoPE only supports n_heads (shard_shape[0]) less than equal to TILE_HEIGHT"
    require(_shard_shape(cos)[0] == TILE, wrong, "shards of 32 rows", CORES)
    _check_matrix(matrix, _shard_shape(matrix))


def _check_llama_prefill(x: TensorSpec, cos: TensorSpec, matrix: TensorSpec) -> None:
    wrong = "Input tensor must be interleaved in prefill mode"
    require(x.memory_config.memory_layout is INTERLEAVED, wrong, "interleaved memory", RESHARD)
    width = x.shape[-1]
    wrong = f"Cos dims must match input dims: cos.shape = {cos.shape}, head_dim = {width}"
    require(cos.shape[0] == 1 and cos.shape[-1] == width, wrong, f"[1, .., {width}]", CACHES)
    wrong = f"Num heads in cos/sin must match input tensor num heads or be 1. Expected {x.shape[1]}, got {cos.shape[1]}"
    require(cos.shape[1] in (1, x.shape[1]), wrong, f"1 or {x.shape[1]}", CACHES)
    sharded = matrix.memory_config.memory_layout is HEIGHT
    _check_matrix(matrix, _shard_shape(matrix) if sharded else (matrix.shape[-2], matrix.shape[-1]))


def _shard_shape(spec: TensorSpec) -> tuple[int, ...]:
    shards = spec.memory_config.shard_spec
    return tuple(shards.shape) if shards is not None else (0, 0)


def _check_matrix(matrix: TensorSpec, tile: tuple[int, ...]) -> None:
    fix = "Pass one tile: get_rot_transformation_mat()."
    wrong = "Transformation matrix must have 1st & 2nd dim equal to 1"
    require(matrix.shape[0] == 1 and matrix.shape[1] == 1, wrong, "[1, 1, 32, 32]", fix)
    require(tile[0] == TILE, "Transformation matrix must have 3rd dim equal to TILE_HEIGHT", "[1, 1, 32, 32]", fix)
    require(tile[1] == TILE, "Transformation matrix must have 4th dim equal to TILE_WIDTH", "[1, 1, 32, 32]", fix)


def check_fused(call: Call) -> None:
    """rotary_embedding_llama_fused_qk: queries and keys of the same users on separate cores."""
    q, k, cos, sin, matrix = call.specs[:5]
    row_major = q.layout is Layout.ROW_MAJOR
    for spec, name in ((q, "Q input"), (k, "K input"), (cos, "cos"), (sin, "sin")):
        wrong = f"{name} tensor must be in layout Layout::{q.layout.name}"
        require(spec.layout is q.layout, wrong, "equal layouts", "Convert it with ttnn.to_layout.")
    wrong = "rotary_embedding_llama_fused_qk currently only supports decode mode with seq_len=1."
    require(q.shape[0] == 1 and k.shape[0] == 1, wrong, "[1, users, heads, dim]", "Reshape them.")
    wrong = "Q input tensor and K input tensor must have same head dimensions"
    require(q.shape[-1] == k.shape[-1], wrong, "equal head sizes", "Check the projections.")
    for spec, name in ((q, "Q"), (k, "K")):
        wrong = f"For row major, {name} input tensor must be wrapped to tile size"
        require(
            not row_major or spec.shape[-2] * spec.shape[-1] == TILE * TILE,
            wrong,
            "1024 elements",
            "Give it these dims with ttnn.reshape.",
        )
    require(q.shape[-1] % TILE == 0, "Head dim must be a multiple of TILE_WIDTH", "32, 64, …", "Pad the heads.")
    require(
        q.shape[1] == k.shape[1],
        "Q and K must have the equal batch size",
        "equal users",
        "Pass heads of the same users.",
    )
    wrong = "Q and K must have batch size less than or equal to 32, due to parallelization over core-grid of 64"
    require(q.shape[1] <= 32, wrong, "32 users or fewer", "Split the users.")
    grids = [spec.memory_config.shard_spec.grid for spec in (q, k, matrix) if spec.memory_config.shard_spec is not None]
    cores = [grid.num_cores() for grid in grids]
    wrong = "Q and K must not exceed max core grid size of 64"
    require(cores[0] + cores[1] <= 64, wrong, "64 cores or fewer", CORES)
    require(not grids[0].intersects(grids[1]), "Q and K must not overlap", "separate cores for Q and K", CORES)
    require(tuple(cos.shape) == tuple(sin.shape), "Cos and Sin dims must match", "equal shapes", CACHES)
    wrong = (
        "Cos and Sin are repeated for Q and K, so they must have the same batch size as the sum of Q and K batch sizes"
    )
    require(cos.shape[1] == q.shape[1] + k.shape[1], wrong, f"{2 * q.shape[1]} rows", CACHES)
    wrong = "transformation matrix must be tilized"
    require(matrix.layout is Layout.TILE, wrong, "TILE layout", "Convert it with ttnn.to_layout.")
    wrong = "Transformation matrix is repeated for Q and K must be sharded over core grid of Q and K"
    require(cores[2] >= cores[0] + cores[1], wrong, f"{cores[0] + cores[1]} cores", CORES)
    wrong = "Transformation matrix must be sharded to single tile of shape (32, 32)"
    require(_shard_shape(matrix) == (TILE, TILE), wrong, "shards of 32x32", CORES)
