"""Sampling of tokens from logits: manual_seed and sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError, require
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, like_first, make_output_spec
from ttmesh.ops.creation.full import create_filled
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

USERS = 32  # one core draws for one user
KEEP = 0xFFFFFFFF  # a seed that leaves a user's generator unchanged
INDEX_TYPES = {DataType.UINT32, DataType.INT32}

_generators: dict[int, torch.Generator] = {}


def seed_users(seeds: Sequence[int], users: Sequence[int]) -> None:
    """Seed the generator of each user; those with the seed KEEP are left unchanged."""
    for user, seed in zip(users, seeds, strict=True):
        if seed != KEEP:
            _generators[user] = torch.Generator().manual_seed(seed)


def draw_uniform(users: int, seed: int | None) -> torch.Tensor:
    """One number in [0, 1) per user: from this seed, or from the users' generators."""
    if seed:
        return torch.rand(users, generator=torch.Generator().manual_seed(seed), dtype=torch.float32, device="cpu")
    for user in range(users):
        if user not in _generators:
            _generators[user] = torch.Generator().manual_seed(user)
    return torch.cat(
        [torch.rand(1, generator=_generators[user], dtype=torch.float32, device="cpu") for user in range(users)]
    )


def _seed_lanes(seeds: torch.Tensor, user_ids: torch.Tensor | None = None) -> torch.Tensor:
    """Seed the generators from lanes, when the program runs; a replayed trace seeds them again."""
    if not seeds.is_meta:
        numbers = seeds.flatten().tolist()
        users = list(range(len(numbers))) if user_ids is None else user_ids.flatten().tolist()
        count = min(len(numbers), len(users), USERS)  # lanes of several chips hold the same seeds one after the other
        seed_users(numbers[:count], users[:count])
    return seeds


_SEED_ALL = device_operation("ttnn.manual_seed", out=like_first, writes="seeds")(lambda seeds: _seed_lanes(seeds))
_SEED_LISTED = device_operation("ttnn.manual_seed", out=like_first, writes="seeds")(
    lambda seeds, user_ids: _seed_lanes(seeds, user_ids)
)


@composite("ttnn.manual_seed")
def manual_seed(
    seeds: int | Tensor, device: MeshDevice | None, user_ids: int | Tensor | None, sub_core_grids: object
) -> Tensor | None:
    """Seed the generators that sampling uses: of all users, of one, or of a list."""
    if isinstance(seeds, Tensor):
        if user_ids is not None and not isinstance(user_ids, Tensor):
            raise MeshError(
                "Seeds were provided as a tensor, so user_ids must not be provided as a scalar.",
                expected="user_ids as a tensor",
                fix="Pass a tensor of user ids, or one seed.",
            )
        require_dtype(seeds.spec, {DataType.UINT32}, "Seeds tensor must be of type UINT32.")
        count, users_given = seeds.shape.volume(), seeds.shape.volume() if user_ids is None else user_ids.shape.volume()
        wrong = (
            "Seeds tensor and User IDs tensor must have the same number of elements. Got seeds volume: "
            f"{count} and user_ids volume: {users_given}"
        )
        require(count == users_given, wrong, "equal lengths", "Give both the same number of entries.")
        if seeds.device() is None:
            _seed_lanes(seeds.lanes, None if user_ids is None else user_ids.lanes)
        elif user_ids is None:
            _SEED_ALL(seeds=seeds)
        else:
            _SEED_LISTED(seeds=seeds, user_ids=user_ids)
        return seeds
    if device is None and not isinstance(user_ids, Tensor):
        raise MeshError(
            "Device must be provided when seeds is a uint32_t value.", expected="device=", fix="Pass the mesh."
        )
    if isinstance(user_ids, Tensor):
        users = _to_list(user_ids)
    else:
        wrong = "User IDs scalar must be in the range [0, 31]."
        require(user_ids is None or 0 <= user_ids < USERS, wrong, "0..31", "Use an id from 0 to 31.")
        users = list(range(USERS)) if user_ids is None else [user_ids]
    seed_users([seeds] * len(users), users)
    if device is None:
        return None
    device.program_cache.compile("ttnn.manual_seed", (("ttnn.manual_seed", seeds, tuple(users)),))
    return create_filled((1,), 0, DataType.UINT32, Layout.ROW_MAJOR, device, DRAM_MEMORY_CONFIG)


def _to_list(tensor: Tensor) -> list[int]:
    values: list[int] = tensor.cpu().lanes.flatten().tolist()[: tensor.shape.volume()]
    return values


def _check(call: Call) -> None:
    values, indices, k, p, temp = call.specs
    require_dtype(values, {DataType.BFLOAT16}, "Only BFLOAT16 is supported for inputs!")
    require_layout(values, Layout.TILE, "Only TILE_LAYOUT is supported for inputs!")
    require_dtype(indices, INDEX_TYPES, "Only UINT32 & INT32 dtypes are supported for input indices!")
    wrong = "Only ROW_MAJOR is supported for input indices!"
    require(indices.layout is Layout.ROW_MAJOR, wrong, "ROW_MAJOR", "Convert it with ttnn.to_layout.")
    wrong = "Input values and indices must have the same shape!"
    require(tuple(values.shape) == tuple(indices.shape), wrong, "equal shapes", "Reshape one with ttnn.reshape.")
    rank = len(values.shape)
    wrong = f"Sampling input_values must be rank-4; got rank {rank}"
    require(rank == 4, wrong, "[1, 1, users, width]", "Reshape it to four dims.")
    n, c, users, width = values.shape
    wrong = f"Sampling requires input dims 0 and 1 (N, C) to be 1; got [{n}, {c}, {users}, {width}]!"
    require(n == c == 1, wrong, "[1, 1, users, width]", "Reshape it to four dims.")
    wrong = f"Sampling currently supports between 1 and 32 users (one core per user); got {users}!"
    require(1 <= users <= USERS, wrong, "1 to 32 users", "Sample at most 32 users at a time.")
    wrong = f"Input inner dim ({width}) must be non-zero and divisible by 32, pad if needed!"
    require(width > 0 and width % 32 == 0, wrong, "a multiple of 32", "Pad the vocabulary with ttnn.pad.")
    require_dtype(k, INDEX_TYPES, "Only UINT32 & INT32 dtypes are supported for k!")
    for name, spec in (("p", p), ("temp", temp)):
        require_dtype(spec, {DataType.BFLOAT16}, f"Only BFLOAT16 dtypes are supported for {name}!")
    for name, spec in (("k", k), ("p", p), ("temp", temp)):
        wrong = f"Only ROW_MAJOR layout is supported for {name}!"
        require(spec.layout is Layout.ROW_MAJOR, wrong, "ROW_MAJOR", "Convert it with ttnn.to_layout.")
        wrong = f"{name} must have shape [{users}] (one per user)!"
        require(tuple(spec.shape) == (users,), wrong, f"[{users}]", "Reshape it to that shape.")


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], dtype=DataType.UINT32, layout=Layout.ROW_MAJOR)]


@op("ttnn.sampling", check=_check, out=_spec, runtime=("seed",))
def sampling(
    input_values_tensor: torch.Tensor,
    input_indices_tensor: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    temp: torch.Tensor,
    seed: int | None,
    lane_axes: int,
) -> torch.Tensor:
    """One index per user, sampled from softmax(values * temp) with top-k and top-p filtering."""
    values, indices, k, p, temp = align_mesh_dims([input_values_tensor, input_indices_tensor, k, p, temp], lane_axes)
    local = (*values.shape[:lane_axes], 1, 1, values.shape[-2], 1)
    logits, order = torch.sort(values.float() * temp.float().reshape(local), stable=True, descending=True)
    position = torch.arange(values.shape[-1], device=values.device)
    logits = logits.masked_fill(position >= k.reshape(local), -torch.inf)
    probability = torch.softmax(logits, -1)
    cumulative_before = probability.cumsum(-1) - probability
    probability = probability.masked_fill((cumulative_before >= p.float().reshape(local)) & (position > 0), 0.0)
    cumulative = probability.cumsum(-1)
    users = values.shape[-2]
    nothing_to_draw = values.is_meta or values.numel() == 0  # shapes are inferred; a draw would change the next call's
    uniform = probability.new_empty((users, 1)) if nothing_to_draw else draw_uniform(users, seed).reshape(users, 1)
    sampled = (
        (cumulative <= uniform.to(cumulative.device) * cumulative[..., -1:])
        .sum(-1, keepdim=True)
        .clamp(max=values.shape[-1] - 1)
    )
    tokens = torch.gather(indices.expand_as(order), -1, torch.gather(order, -1, sampled))
    return tokens.transpose(-1, -2)
