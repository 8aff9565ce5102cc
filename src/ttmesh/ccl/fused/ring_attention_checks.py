"""What TT-NN refuses of attention over a ring of devices, in its words and order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ttmesh.base.dtypes import BufferType, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32
FORMATS = (DataType.BFLOAT16, DataType.BFLOAT8_B, DataType.BFLOAT4_B)
SLICE = "Slice or pad the sequence."
CONVERT = "Convert it with ttnn.typecast."


@dataclass(frozen=True)
class LatentRing:
    """The arguments of ring attention over a latent cache, whose first columns are the values."""

    q: TensorSpec
    kv: TensorSpec
    gathered: TensorSpec
    ring: int
    dim: int
    head_dim_v: int
    logical_n: int
    is_balanced: bool
    cache_batch_idx: int | None
    layers: int
    layer: int
    kv_actual_isl: int | None
    metadata: tuple[Tensor | None, Tensor | None, Tensor | None]  # slot, length before the chunk, end of real tokens

    @property
    def is_chunked(self) -> bool:
        """Whether the queries are the latest chunk of a longer cache."""
        return self.q.shape[2] < self.kv.shape[2]

    @property
    def has_metadata(self) -> bool:
        """Whether slot and length are read on the device."""
        return self.metadata[0] is not None

    @property
    def selects_slot(self) -> bool:
        """Whether one slot of a cache is gathered."""
        return self.cache_batch_idx is not None or self.has_metadata


def check_latent_ring(ring: LatentRing, program_config: Any, offset: Any, column_major: bool) -> None:
    """Raise TT-NN's errors of ring_mla's tensors, lengths and cores."""
    _check_metadata(ring)
    _check_gather(ring)
    grid, (x, y) = read_size(program_config.compute_with_storage_grid_size), read_size(offset)
    require(
        x >= grid[0] if column_major else y >= grid[1],
        f"SDPA coregrid overlaps with AllGather coregrid ({'column' if column_major else 'row'}-major)",
        f"ccl_core_grid_offset outside of the config's {grid[0]} x {grid[1]} cores",
        "Move the offset or use a smaller grid.",
    )
    for spec in (ring.q, ring.gathered):
        _check_operand(spec)
    _check_lengths(ring)
    _check_runtime_lengths(ring)
    _check_rotation(ring)
    _check_heads(ring, program_config)


def check_ring_cores(mesh: MeshDevice, program_config: Any, offset: Any, num_links: int) -> None:
    """Raise if the config's cores, or those that gather, do not exist on the chip."""
    size = mesh.compute_with_storage_grid_size()
    x, y = read_size(program_config.compute_with_storage_grid_size)
    first = (size.x, 0) if x > size.x else (0, size.y)
    require(
        x <= size.x and y <= size.y,
        f"No core coordinate found at location: ({first[0]}, {first[1]}, TENSIX, LOGICAL)",
        f"at most {size.x} x {size.y} cores",
        "Use a smaller grid.",
    )
    x, y = read_size(offset)
    workers = 2 * num_links
    require(
        x < size.x and y < size.y,
        f"Core grid offset {x}-{y} pushed {workers} of the {workers} selected worker cores (first: {x}-{y}) off the worker "
        "grid; kernels cannot be placed there. Request fewer cores or use a smaller offset.",
        f"an offset inside {size.x} x {size.y} cores",
        "Move the offset.",
    )


def read_size(value: Any) -> tuple[int, int]:
    """x and y of a core or a grid, given as an object or a pair."""
    if hasattr(value, "x"):
        return int(value.x), int(value.y)
    return int(value[0]), int(value[1])


def _check_metadata(ring: LatentRing) -> None:
    slot, length, end = ring.metadata
    require(
        (slot is None) == (length is None),
        "metadata tensors slot_id and kv_actual_isl_tensor must be supplied together, or neither supplied",
        "both tensors or none",
        "Pass both.",
    )
    host_form = ring.cache_batch_idx is not None or ring.kv_actual_isl is not None
    require(
        slot is None or not host_form,
        "metadata tensors replace the host kv_cache_batch_idx / kv_actual_isl; pass one form, not both",
        "tensors or numbers",
        "Leave out kv_cache_batch_idx and kv_actual_isl.",
    )
    require(
        end is None or (slot is not None and ring.is_chunked),
        "kv_valid_end_tensor requires the slot_id / kv_actual_isl metadata path with chunked-shaped prefill (Q.seq < K.seq "
        "or kv_stripe_split > 1)",
        "slot_id and kv_actual_isl_tensor",
        "Pass them, too.",
    )
    for name, tensor in zip(("slot_id", "kv_actual_isl_tensor", "kv_valid_end_tensor"), ring.metadata, strict=True):
        if tensor is not None:
            _check_scalar(name, tensor.spec)
    layers, batch = ring.layers, ring.kv.shape[0]
    require(
        layers > 0, "kv_cache_num_layers must be greater than zero", "1 or more", "Leave it out for one layer per slot."
    )
    require(
        ring.layer < layers,
        f"kv_cache_layer_idx={ring.layer} must be less than kv_cache_num_layers={layers}",
        f"0 to {layers - 1}",
        "Count layers from 0.",
    )
    require(
        not ring.has_metadata or batch % layers == 0,
        f"KV cache batch (K={batch}, V={batch}) must be divisible by kv_cache_num_layers={layers}",
        f"a multiple of {layers}",
        "Allocate all layers of every slot.",
    )


def _check_scalar(name: str, spec: TensorSpec) -> None:
    require(spec.dtype is DataType.UINT32, f"{name} must have UINT32 dtype", "uint32", CONVERT)
    wrong = f"{name} must use ROW_MAJOR layout"
    require(spec.layout is Layout.ROW_MAJOR, wrong, "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
    require(spec.shape.volume() == 1, f"{name} must contain exactly one element", "one number", "Slice it.")
    wrong = f"{name} must be stored in DRAM"
    require(spec.memory_config.buffer_type is BufferType.DRAM, wrong, "DRAM", "Move it with ttnn.to_memory_config.")


def _check_gather(ring: LatentRing) -> None:
    source, target = ring.kv, ring.gathered
    tiled = "Convert it with ttnn.to_layout."
    require(source.layout is Layout.TILE, "Input tensor 0 must be tiled", "TILE_LAYOUT", tiled)
    require(target.layout is Layout.TILE, "Output tensor 0 must be tiled", "TILE_LAYOUT", tiled)
    wrong = f"Output tensor 0 dtype should match input tensors but has DataType::{target.dtype.name}"
    require(target.dtype is source.dtype, wrong, source.dtype.name, CONVERT)
    expected = [*source.shape]
    expected[ring.dim] *= ring.ring
    for d, extent in enumerate(target.shape):
        if d == ring.dim:
            wrong = f"Output tensor 0 gather dim {d} too small: got {extent}, expected >= {expected[d]}"
            require(extent >= expected[d], wrong, f"{expected[d]} or more", "Allocate a longer buffer.")
        elif d == 0 and ring.selects_slot:
            wrong = f"Output tensor 0 batch dim must be 1 (single-slot gather) or {expected[d]}: got {extent}"
            require(extent in (1, expected[d]), wrong, f"1 or {expected[d]}", "Allocate one slot.")
        else:
            wrong = f"Output tensor 0 non-gather dim {d} mismatch: got {extent}, expected {expected[d]}"
            require(extent == expected[d], wrong, str(expected[d]), "Allocate it with that shape.")


def _check_operand(spec: TensorSpec) -> None:
    wrong = "Inputs to Joint SDPA must be tilized"
    require(spec.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
    require(spec.dtype in FORMATS, "Inputs to Joint SDPA must be BF16 or BF8 or BF4", "bfloat16", CONVERT)
    wrong = "Operands to Joint SDPA need to be in DRAM"
    require(spec.memory_config.buffer_type is BufferType.DRAM, wrong, "DRAM", "Move it with ttnn.to_memory_config.")


def _check_lengths(ring: LatentRing) -> None:
    rows, keys = ring.q.shape[2], ring.kv.shape[2]
    require(
        ring.has_metadata or ring.logical_n > 0,
        "Logical sequence length must be > 0; kernels derive last-valid-tile = logical_nt - 1 and would underflow.",
        "1 or more",
        "Pass the length of the sequence.",
    )
    require(
        rows <= keys,
        "Per-device Q seq length must be <= per-device K/V seq length times kv_stripe_split. Equal: full-prefill path. "
        f"Less: chunked-prefill path. Greater is undefined. Got N_local_q={rows}, N_local_kv={keys}, kv_stripe_split=1",
        f"at most {keys} rows",
        SLICE,
    )


def _check_runtime_lengths(ring: LatentRing) -> None:
    """What TT-NN checks in every call, not only when it makes a program."""
    index, batch = ring.cache_batch_idx, ring.kv.shape[0]
    if index is not None:
        slot = index * ring.layers + ring.layer
        require(
            slot < batch,
            f"cache batch {slot} (kv_cache_batch_idx={index} * kv_cache_num_layers={ring.layers} + kv_cache_layer_idx="
            f"{ring.layer}) is outside the KV cache batch (K={batch}, V={batch})",
            f"a slot below {batch}",
            "Allocate more slots.",
        )
    valid = ring.kv_actual_isl
    if valid is None:
        return
    n, new = ring.logical_n, ring.logical_n - valid
    require(
        n >= valid,
        f"logical_n must be >= kv_actual_isl. Got logical_n={n}, kv_actual_isl={valid}",
        f"{valid} or more",
        SLICE,
    )
    require(
        valid % TILE == 0 and new % TILE == 0,
        f"KV-pad-aware rotation currently requires tile-aligned lengths. Got kv_actual_isl={valid}, new_actual_isl={new} "
        f"(logical_n - kv_actual_isl), TILE_HEIGHT={TILE}",
        f"multiples of {TILE}",
        "Round them up to whole tiles.",
    )
    require(
        new > 0,
        "KV-pad-aware rotation requires at least one valid token in the current chunk. Got kv_actual_isl="
        f"{valid}, logical_n={n}",
        "a larger logical_n",
        "logical_n counts the tokens of this chunk, too.",
    )
    capacity, chunk = ring.kv.shape[2] * ring.ring, ring.q.shape[2] * ring.ring
    require(
        n <= capacity,
        f"KV-pad-aware rotation logical_n exceeds physical K/V cache capacity. Got logical_n={n}, cache capacity={capacity}",
        f"at most {capacity}",
        "Allocate a longer cache.",
    )
    require(
        new <= chunk,
        f"KV-pad-aware rotation expects current valid Q to fit in one fixed chunk. Got new_actual_isl={new}, chunk capacity="
        f"{chunk}",
        f"at most {chunk}",
        SLICE,
    )


def _check_rotation(ring: LatentRing) -> None:
    rows, keys = ring.q.shape[2], ring.kv.shape[2]
    if ring.kv_actual_isl is not None or (ring.has_metadata and ring.is_chunked):
        start = "KV-pad rotation (host kv_actual_isl or metadata)"
        require(
            ring.is_chunked,
            f"{start} requires chunked-prefill input (Q.seq < K.seq). Got N_local_q={rows}, N_local_kv={keys}",
            "a cache longer than the queries",
            "Leave kv_actual_isl out.",
        )
        require(
            not ring.is_balanced,
            f"{start} does not support balanced zigzag distribution. Pass is_balanced=false.",
            "is_balanced=False",
            "Leave is_balanced out.",
        )
        require(
            keys % rows == 0,
            "KV-pad-aware rotation expects K/V local sequence length to be an integer number of KV regions (Q slab / stripe "
            f"split). Got N_local_kv={keys}, N_local_q={rows}, kv_stripe_split=1",
            f"a multiple of {rows}",
            "Allocate the cache in whole chunks.",
        )


def _check_heads(ring: LatentRing, program_config: Any) -> None:
    q, k, values = ring.q.shape, ring.gathered.shape, ring.head_dim_v
    q_chunk, k_chunk = program_config.q_chunk_size or TILE, program_config.k_chunk_size or TILE
    wrong = "q_chunk_size must divide half of local q seq_len in balanced case"
    require(
        not ring.is_balanced or q[2] // 2 % q_chunk == 0, wrong, f"a divisor of {q[2] // 2}", "Change q_chunk_size."
    )
    require(values > 0, "V head dimension must be provided and non-zero", "1 or more", "Pass head_dim_v.")
    wrong = f"Latent-V mode currently supports one shared KV head. Got K/V heads: {k[1]}"
    require(k[1] == 1, wrong, "one head", "Slice one head.")
    wrong = "Latent-V mode reads V from K's strict prefix, so V head dim must be < K head dim. Got V: "
    require(values < q[3], f"{wrong}{values}, K: {q[3]}", f"less than {q[3]}", "Lower head_dim_v.")
    wrong = f"Latent-V head dim must be tile aligned. Got V: {values}, tile width: {TILE}"
    require(values % TILE == 0, wrong, f"a multiple of {TILE}", "Round head_dim_v up to whole tiles.")
    if ring.selects_slot:
        require(
            q[0] == 1,
            "kv_cache_batch_idx currently selects one shared K/V cache slot for the whole query batch; indexed K/V cache "
            f"mode requires Q batch size 1. Got Q batch size {q[0]}",
            "one batch",
            "Call it once per batch.",
        )
    else:
        wrong = f"K batch size must match Q. Got Q: {q[0]}, K: {k[0]}"
        require(k[0] == q[0], wrong, f"{q[0]} batches", "Give both the same batch.")
    wrong = f"Q/K head dimensions must match. Got Q: {q[3]}, K: {k[3]}"
    require(k[3] == q[3], wrong, f"{q[3]} columns", "Give both the same last dim.")
    require(
        ring.has_metadata or ring.logical_n <= k[2],
        "Logical sequence length must be less than or equal to global sequence length. Got logical sequence length: "
        f"{ring.logical_n}, global sequence length: {k[2]}",
        f"at most {k[2]}",
        SLICE,
    )
    for name, size in (("q_chunk_size", q_chunk), ("k_chunk_size", k_chunk)):
        wrong = f"{name} must be a positive multiple of TILE_SIZE. Got {name}: {size}, TILE_SIZE: {TILE}"
        require(size % TILE == 0, wrong, f"a multiple of {TILE}", f"Change {name}.")
    for name, letter, length in (("Q", "q", q[2]), ("K/V", "kv", ring.kv.shape[2])):
        wrong = f"Per-device {name} seq length must be divisible by TILE_HEIGHT. Got N_local_{letter}: {length}"
        require(length % TILE == 0, f"{wrong}, TILE_HEIGHT: {TILE}", f"a multiple of {TILE}", "Pad the sequence.")
