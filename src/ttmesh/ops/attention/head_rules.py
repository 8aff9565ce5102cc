"""What the operations that split and concatenate heads accept, in TT-NN's order and words."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ttmesh.base.dtypes import DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype, require_layout, require_memory_layout
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
FORMATS = (DataType.FLOAT32, DataType.BFLOAT16, DataType.BFLOAT8_B)
BLOCK, HEIGHT, WIDTH = (
    TensorMemoryLayout.BLOCK_SHARDED,
    TensorMemoryLayout.HEIGHT_SHARDED,
    TensorMemoryLayout.WIDTH_SHARDED,
)
RESHAPE, RESHARD = "Reshape the input.", "Reshard it with ttnn.to_memory_config."


def output_config(call: Call) -> MemoryConfig:
    """Where the results go: memory_config, or where the first tensor is."""
    config: MemoryConfig | None = call["memory_config"]
    return call.specs[0].memory_config if config is None else config


def require_head_tiles(x: TensorSpec, formats: Collection[DataType] = FORMATS) -> None:
    """Raise for formats and layouts that no operation on heads takes."""
    require_dtype(x, formats, "Unsupported data format")
    require_layout(x, Layout.TILE, f"Input tensor layout must be TILE but got Layout::{x.layout.name}")


def count_kv_heads(call: Call) -> int:
    """How many heads keys and values have: as many as queries unless said."""
    heads: int = call["num_heads"] if call["num_kv_heads"] is None else call["num_kv_heads"]
    return heads


def _require_interleaved_output(call: Call) -> None:
    layout = output_config(call).memory_layout
    wrong = f"Output memory config layout must be INTERLEAVED but got TensorMemoryLayout::{layout.name}"
    require(
        layout is TensorMemoryLayout.INTERLEAVED, wrong, "interleaved results", "Pass an interleaved memory_config."
    )


def _require_shards(x: TensorSpec) -> ShardSpec:
    shards = x.memory_config.shard_spec
    require(shards is not None, "bad optional access", "a sharded tensor", RESHARD)
    assert shards is not None, "the line above"
    return shards


def _count_grid_cores(shards: ShardSpec) -> tuple[int, int]:
    """Cores along height and along width of a block sharding."""
    end = shards.grid.bounding_box().end
    cores = (end.y + 1, end.x + 1)
    return cores if shards.orientation is ShardOrientation.ROW_MAJOR else cores[::-1]


def _require_even_width(width: int, cores: int) -> None:
    wrong = (
        f"Flattened hidden dimension {width} must be a multiple of width cores {cores} * tile width {TILE} to ensure that "
        "each core gets an even amount of tiles"
    )
    require(width % (cores * TILE) == 0, wrong, f"a multiple of {cores * TILE}", "Change the shards.")


def check_create(call: Call) -> None:
    """create_qkv_heads: blocks of shards, a row of cores per batch."""
    x, heads, kv = call.specs[0], call["num_heads"], count_kv_heads(call)
    width = x.padded_shape[3]
    wrong = f"Flattened hidden dimension {width} must be a multiple of the combined Q {heads}, K {kv} and V {kv} heads"
    require(width % (heads + 2 * kv) == 0, wrong, f"a multiple of {heads + 2 * kv}", "Check the head counts.")
    check_create_shards(call, (x.padded_shape[0], x.padded_shape[1], width))


def check_create_shards(call: Call, shape: tuple[int, int, int]) -> None:
    """What create_qkv_heads wants of [batch, 1, .., width] in shards."""
    x, heads, kv = call.specs[0], call["num_heads"], count_kv_heads(call)
    shards = _require_shards(x)
    require_head_tiles(x)
    require(shape[1] == 1, "Unsupported input shape", "[batch, 1, rows, width]", RESHAPE)
    require_memory_layout(x, BLOCK, "Input tensor memory layout")
    rows, columns = _count_grid_cores(shards)
    wrong = f"Number of q heads {heads} must fit evenly into number of kv heads {kv}"
    require(heads % kv == 0, wrong, "groups of equal size", "Check the head counts.")
    _require_even_width(shape[2], columns)
    layout = output_config(call).memory_layout
    wrong = f"Output memory config layout must be HEIGHT_SHARDED but got TensorMemoryLayout::{layout.name}"
    require(layout is HEIGHT, wrong, "results sharded by height", "Pass ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG.")
    wrong = f"Batch size {shape[0]} must be equal to num cores {rows}"
    require(shape[0] == rows, wrong, "a row of cores per batch", "Change the shards.")


def check_create_separate(call: Call) -> None:
    """create_qkv_heads_from_separate_tensors: queries and pairs of keys and values in blocks of shards."""
    q, kv = call.specs[:2]
    heads, kv_heads = call["num_heads"], count_kv_heads(call)
    _require_shards(q)
    _require_shards(kv)
    require_dtype(q, FORMATS, "Unsupported data format")
    require_dtype(kv, q.dtype, "Unsupported data format")
    wrong = (
        f"Q and KV input tensors must have TILE layout but got Q: Layout::{q.layout.name}, KV: Layout::{kv.layout.name}"
    )
    for x in (q, kv):
        require_layout(x, Layout.TILE, wrong)
    require_memory_layout(q, BLOCK, "Q input tensor memory layout")
    require_memory_layout(kv, BLOCK, "KV input tensor memory layout")
    rows, columns = _count_grid_cores(_require_shards(q))
    for count, name in ((heads, "q"), (kv_heads, "kv")):
        wrong = f"Number of {name} heads {count} must fit evenly into cores {columns}"
        require(count % columns == 0, wrong, f"a multiple of {columns}", "Change the shards.")
    shapes = (q.padded_shape, kv.padded_shape)
    for shape in shapes:
        require(shape[1] == 1, "Unsupported input shape", "[batch, 1, rows, width]", RESHAPE)
    wrong = f"Q {shapes[0][0]} and KV {shapes[1][0]} batch size must match"
    require(shapes[0][0] == shapes[1][0], wrong, "equal batches", "Pass keys and values of the same batch.")
    for shape in shapes:
        _require_even_width(shape[3], columns)
        wrong = (
            f"Batch {shape[0]} * Seq Len {shape[2]} must be a multiple of height cores {rows} * tile height {TILE} to "
            "ensure that each core gets an even amount of tiles"
        )
        require(shape[0] * shape[2] % (rows * TILE) == 0, wrong, f"a multiple of {rows * TILE}", "Change the shards.")
    wrong = (
        f"Head dims must be equal in size! Q {shapes[0][3]} num_heads {heads} KV {shapes[1][3]} num_heads {kv_heads}"
    )
    require(shapes[0][3] // heads == shapes[1][3] // (2 * kv_heads), wrong, "equal heads", "Check the head counts.")
    wrong = f"Batch size {shapes[0][0]} must be equal to num cores {rows}"
    require(shapes[0][0] == rows, wrong, "a row of cores per batch", "Change the shards.")


def check_bert_large(call: Call) -> None:
    """experimental.split_query_key_value_and_split_heads: batches of 7 to 9 unless sharded."""
    x = call.specs[0]
    require_dtype(x, (DataType.BFLOAT16, DataType.BFLOAT8_B), "Unsupported data format")
    shards = x.memory_config.shard_spec
    if shards is None:
        _require_bert_batch(x)
        return
    end, size = shards.grid.bounding_box().end, call["compute_with_storage_grid_size"]
    wrong = f"Bounding box end coordinates ({end.x}, {end.y}) must be less than grid size ({size.x}, {size.y})"
    require(end.x < size.x and end.y < size.y, wrong, "shards inside the grid", "Change the shards.")
    require_memory_layout(x, BLOCK, "Input tensor memory layout")


def _require_bert_batch(x: TensorSpec) -> None:
    wrong = "Input batch size must be between 7 to 9 for bert large TM ops!"
    require(7 <= x.padded_shape[0] <= 9, wrong, "7 to 9 batches", "Use the operation of ttnn.transformer instead.")


def check_bert_large_concat(call: Call) -> None:
    """experimental.concatenate_heads: [7 to 9, 16, 384, 64]."""
    x = call.specs[0]
    _require_bert_batch(x)
    require_dtype(x, (DataType.BFLOAT16, DataType.BFLOAT8_B), "Unsupported data format")
    shape = "[batch, 16, 384, 64]"
    require(tuple(x.padded_shape[1:]) == (16, 384, 64), "Unsupported input shape", shape, RESHAPE)
    size, most = call["compute_with_storage_grid_size"], call.mesh.compute_with_storage_grid_size()
    fits = size.x <= most.x and size.y <= most.y
    require(fits, "Unsupported grid shape", f"at most {most.x}x{most.y} cores", "Pass a smaller grid.")


def check_concat(call: Call) -> None:
    """nlp_concat_heads: whole heads per shard, results not sharded by height."""
    x, layout = call.specs[0], output_config(call).memory_layout
    require_head_tiles(x)
    shards = x.memory_config.shard_spec
    if shards is None:
        _require_interleaved_output(call)
        return
    shape, given = x.padded_shape, x.memory_config.memory_layout
    wrong = f"Input tensor memory layout must not be WIDTH_SHARDED but got TensorMemoryLayout::{given.name}"
    require(given is not WIDTH, wrong, "shards by height or blocks", RESHARD)
    height, width = shards.shape
    wrong = f"Input tensor shard width ({width}) must equal padded width ({shape[-1]})"
    require(width == shape[-1], wrong, "whole heads", RESHARD)
    wrong = f"Input tensor shard height ({height}) must be divisible by padded height ({shape[-2]})"
    require(height % shape[-2] == 0, wrong, "whole heads", RESHARD)
    wrong = (
        f"Input tensor padded height ({shape[1]}) must be divisible by shard height / padded height ({height} / "
        f"{shape[-2]})"
    )
    require(shape[1] % (height // shape[-2]) == 0, wrong, "whole heads", RESHARD)
    wrong = f"Sharded input requires a sharded output memory config but got TensorMemoryLayout::{layout.name}"
    require(layout is not TensorMemoryLayout.INTERLEAVED, wrong, "sharded results", "Pass a sharded memory_config.")
    wrong = f"Output memory config layout must not be HEIGHT_SHARDED but got TensorMemoryLayout::{layout.name}"
    require(layout is not HEIGHT, wrong, "shards by blocks or width", "Pass another memory_config.")


def check_concat_decode(call: Call) -> None:
    """nlp_concat_heads_decode: a user per core, sharded by height."""
    x, heads = call.specs[0], call["num_heads"]
    require_head_tiles(x, (DataType.FLOAT32, DataType.BFLOAT16))
    shape = x.padded_shape
    require(shape[0] == 1, "seqlen=1 for decode", "[1, users, heads, dim]", RESHAPE)
    require(shape[1] <= 32, "currently only support less than 32 users", "32 users or fewer", "Split the users.")
    wrong = "head_dim must be multiple of TILE_WIDTH"
    require(shape[2] >= heads, wrong, f"{heads} heads or more", "Check num_heads.")
    shards = x.memory_config.shard_spec
    require(shards is not None, "Input tensor must be sharded", "shards by height", RESHARD)
    assert shards is not None, "the line above"
    require_memory_layout(x, HEIGHT, "Input tensor memory layout")
    for i in (1, 0):
        wrong = (
            f"Shard spec shape[{i}] ({shards.shape[i]}) must match input tensor padded shape[{i - 2}] ({shape[i - 2]})"
        )
        require(shards.shape[i] == shape[i - 2], wrong, "the heads of one user per shard", RESHARD)
    wrong = "Input core grid num_cores must be equal to num users"
    require(shards.num_cores() == shape[1], wrong, f"{shape[1]} cores", RESHARD)


def check_split_fixed(width: int) -> Callable[[Call], None]:
    """The check of an operation for one model's projection, [batch, 1, rows, width]."""

    def check(call: Call) -> None:
        x = call.specs[0]
        require_head_tiles(x)
        shape = x.padded_shape
        fits = len(shape) == 4 and shape[1] == 1 and shape[3] == width
        require(fits, "Unsupported input shape", f"[batch, 1, rows, {width}]", RESHAPE)
        _require_interleaved_output(call)

    return check


def check_segformer(call: Call) -> None:
    """nlp_create_qkv_heads_segformer: interleaved results."""
    require_head_tiles(call.specs[0])
    rank = max(2, len(call.specs[0].shape))
    wrong = f"ShapeBase[] index out of range. 3 not in [-4, {rank})"
    require(rank == 4, wrong, "[batch, 1, rows, columns]", RESHAPE)
    wrong = "Sharded output memory config is not supported for nlp_create_qkv_heads_segformer"
    require(not output_config(call).is_sharded(), wrong, "interleaved results", "Pass an interleaved memory_config.")


def check_create_decode(call: Call) -> None:
    """nlp_create_qkv_heads_decode: one row of users, results sharded by height."""
    x, config, heads, kv = call.specs[0], call["memory_config"], call["num_heads"], count_kv_heads(call)
    require_dtype(x, (DataType.FLOAT32, DataType.BFLOAT16), "Unsupported data format")
    require_layout(x, Layout.TILE, "Only tile layout is supported for input tensor")
    shape = x.shape
    fits = shape[3] % TILE == 0 and shape[2] <= 32 and shape[1] == 1 and shape[0] == 1
    require(fits, f"Unsupported input shape = {shape}", "[1, 1, at most 32 users, width]", RESHAPE)
    shards = x.memory_config.shard_spec
    if shards is not None:
        layout = x.memory_config.memory_layout
        wrong = f"Current input memory layout is TensorMemoryLayout::{layout.name}. It must be width sharded"
        require(x.memory_config.memory_layout is WIDTH, wrong, "shards by width", RESHARD)
        require(
            shards.orientation is ShardOrientation.ROW_MAJOR,
            "Shard orientation must be ROW_MAJOR",
            "ROW_MAJOR",
            RESHARD,
        )
    sharded = config is None or config.memory_layout is HEIGHT
    require(
        sharded,
        "Output tensor must be height sharded",
        "shards by height",
        "Pass ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG.",
    )
    wrong = f"num_q_heads={heads} must be greater than or equal to num_kv_heads={kv}"
    require(heads >= kv, wrong, "as many query heads or more", "Check the head counts.")
