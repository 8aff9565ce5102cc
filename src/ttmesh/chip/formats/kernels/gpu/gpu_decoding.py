"""Attention of one token per user, rotary embeddings and RMS norms on a GPU, each one kernel."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

QUERY_ROWS = 16  # the least that the tensor cores take: the heads that share a key head
KEYS = 64  # of one step
ROTARY_VALUES, MOST_ROTARY_ROWS = 512, 1 << 12  # of one program; of more rows a program takes several times that
LONGEST_ROW = 1 << 14  # of a norm: held in registers
FEW = 64  # programs; with fewer, long rows of keys are left to torch, which divides them
FEW_KEYS = 4096
LOG2_E = math.log2(math.e)


@triton.jit
def _attend(
    q,
    k,
    v,
    positions,
    table,
    out,
    scale,
    keys,
    page_rows,
    pages,
    columns,
    users,
    heads,
    group,
    window,
    q_outer,
    q_inner,
    q_user,
    q_head,
    k_outer,
    k_inner,
    k_user,
    k_head,
    k_row,
    v_outer,
    v_inner,
    v_user,
    v_head,
    v_row,
    position_outer,
    position_inner,
    position_user,
    table_outer,
    table_inner,
    table_user,
    PAGED: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    """The heads of a user that share a key head, over the keys up to the user's position; zeros where that is negative.

    PAGED: key n lies in row n % page_rows of the page that the table has for n // page_rows, and k_user is a page's stride.
    """
    key_head, user = tl.program_id(0), tl.program_id(1)
    lane = tl.program_id(2).to(tl.int64)
    outer, inner = (tl.program_id(2) // columns).to(tl.int64), (tl.program_id(2) % columns).to(tl.int64)
    stored = tl.load(positions + outer * position_outer + inner * position_inner + user * position_user).to(tl.int64)
    position = tl.where(stored > 0x7FFFFFFF, stored - 0x100000000, stored)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    head = key_head * group + row
    here = (row < group)[:, None]
    query = tl.load(
        q + outer * q_outer + inner * q_inner + user * q_user + head[:, None] * q_head + dim[None, :],
        mask=here,
        other=0.0,
    )
    key_base = k + outer * k_outer + inner * k_inner + key_head * k_head
    value_base = v + outer * v_outer + inner * v_inner + key_head * v_head
    table_base = table + outer * table_outer + inner * table_inner + user * table_user
    end = tl.minimum(position + 1, keys).to(tl.int32)
    begin = 0
    if WINDOW:
        begin = (tl.maximum(position + 1 - window, 0) // KEYS * KEYS).to(tl.int32)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, DIM), tl.float32)
    for start in range(begin, end, KEYS):
        n = start + tl.arange(0, KEYS)
        read = n < end
        seen = read
        if WINDOW:
            seen = read & (n > position - window)
        place, page = n, tl.zeros((KEYS,), tl.int64) + user
        if PAGED:
            page = tl.load(table_base + n // page_rows, mask=read, other=0).to(tl.int64)
            place, page = n % page_rows, tl.minimum(tl.maximum(page, 0), pages - 1)
        key = tl.load(key_base + (page * k_user + place * k_row)[None, :] + dim[:, None], mask=read[None, :], other=0.0)
        scores = tl.where(seen[None, :], tl.dot(query, key) * scale, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new[:, None])
        factor = tl.exp2(largest - new)
        total = total * factor + tl.sum(weights, axis=1)
        value = tl.load(
            value_base + (page * v_user + place * v_row)[:, None] + dim[None, :], mask=read[:, None], other=0.0
        )
        result = tl.dot(weights.to(value.dtype), value, result * factor[:, None])
        largest = new
    result = tl.where(position >= 0, result / total[:, None], 0.0)
    place = out + ((lane * users + user) * heads + head[:, None]) * DIM + dim[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=here)


@triton.jit
def _rotate(
    x,
    cos,
    sin,
    matrix,
    out,
    rows,
    columns,
    second,
    third,
    x_outer,
    x_inner,
    x_first,
    x_second,
    x_third,
    cos_outer,
    cos_inner,
    cos_first,
    cos_second,
    cos_third,
    sin_outer,
    sin_inner,
    sin_first,
    sin_second,
    sin_third,
    matrix_outer,
    matrix_inner,
    matrix_row,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    """x cos + (x T) sin of rows of a lane; T multiplies every 32 columns."""
    lane = tl.program_id(1).to(tl.int64)
    outer, inner = (tl.program_id(1) // columns).to(tl.int64), (tl.program_id(1) % columns).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = (i < rows)[:, None]
    a, b, c = i // (second * third), i // third % second, i % third
    dim = tl.arange(0, DIM)[None, :]
    at = outer * x_outer + inner * x_inner + a * x_first + b * x_second + c * x_third
    value = tl.load(x + at[:, None] + dim, mask=here, other=0.0).to(tl.float32)
    at = outer * cos_outer + inner * cos_inner + a * cos_first + b * cos_second + c * cos_third
    cosine = tl.load(cos + at[:, None] + dim, mask=here, other=0.0).to(tl.float32)
    at = outer * sin_outer + inner * sin_inner + a * sin_first + b * sin_second + c * sin_third
    sine = tl.load(sin + at[:, None] + dim, mask=here, other=0.0).to(tl.float32)
    j = tl.arange(0, 32)
    at = outer * matrix_outer + inner * matrix_inner + j[:, None] * matrix_row + j[None, :]
    matrix_values = tl.load(matrix + at).to(tl.float32)
    rotated = tl.dot(tl.reshape(value, (ROWS * DIM // 32, 32)), matrix_values, input_precision="ieee")
    result = value * cosine + tl.reshape(rotated, (ROWS, DIM)) * sine
    place = out + ((lane * rows + i)[:, None]) * DIM + dim
    tl.store(place, result.to(out.dtype.element_ty), mask=here)


@triton.jit
def _normalize(x, weight, out, width, part, epsilon, WEIGHTED: tl.constexpr, WIDTH: tl.constexpr):
    """A row divided by its root mean square, times the weight; `part` is 1 / width."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    values = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    values = values * tl.rsqrt(tl.sum(values * values) * part + epsilon)
    if WEIGHTED:
        values = values * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, values.to(out.dtype.element_ty), mask=inside)


def can_attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor | None) -> bool:
    """Whether these lanes are such as the kernel takes: q [*mesh, 1, users, heads, dim], k and v [*mesh, users, ...]."""
    dim, heads, key_heads = q.shape[-1], q.shape[-2], k.shape[-3]
    keys = k.shape[-2] * (1 if table is None else table.shape[-1])
    if table is not None and (table.dim() != 4 or table.stride(-1) != 1):
        return False
    if any(x.dim() != 6 or x.dtype is not torch.bfloat16 or x.stride(-1) != 1 or x.requires_grad for x in (q, k, v)):
        return False
    fits = dim in (32, 64, 128, 256) and v.shape[-1] == dim and heads % key_heads == 0
    programs = math.prod(q.shape[:2]) * q.shape[3] * key_heads
    return fits and heads // key_heads <= QUERY_ROWS and (programs >= FEW or keys <= FEW_KEYS)


def attend_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor | None,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of one token per user; positions [*mesh, users], of which negative ones give zeros.

    Args:
        table: [*mesh, users, n] pages of each user, where k and v are [*mesh, pages, ...]; without it [*mesh, users, ...].
    """
    given = positions if table is None else table
    dims = torch.broadcast_shapes(*(x.shape[:2] for x in (q, k, v, positions, given)))
    users, heads, dim = q.shape[3:]
    pages, key_heads, page_rows = k.shape[2:5]
    keys = page_rows if table is None else page_rows * given.shape[-1]
    q, positions = q.expand(*dims, *q.shape[2:]), positions.expand(*dims, users)
    given = given.expand(*dims, *given.shape[2:])
    k, v = (x.expand(*dims, users if table is None else pages, *x.shape[3:]) for x in (k, v))
    out = torch.empty((*dims, 1, users, heads, dim), dtype=q.dtype, device=q.device)
    q_strides, kv_strides = q.stride(), (*k.stride()[:5], *v.stride()[:5])
    _attend[(key_heads, users, math.prod(dims))](
        *(q, k, v, positions, given, out, scale * LOG2_E, keys, page_rows, pages),
        *(dims[1], users, heads, heads // key_heads, window or 0),
        *(*q_strides[:2], *q_strides[3:5], *kv_strides, *positions.stride(), *given.stride()[:3]),
        *(table is not None, bool(window), QUERY_ROWS, KEYS, dim),
        num_warps=4,
        num_stages=3,
    )
    return out


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor | None:
    """x cos + (x T) sin of bfloat16 lanes [*mesh, a, b, c, dim], in float32; None where that is not for the kernel."""
    tensors = (x, cos, sin, matrix)
    if any(t.dim() != 6 or t.dtype is not torch.bfloat16 or t.stride(-1) != 1 or t.requires_grad for t in tensors):
        return None
    local, width = x.shape[2:5], x.shape[-1]
    if width not in (32, 64, 128, 256) or matrix.shape[2:4] != (1, 1) or not x.numel():
        return None
    if any(size not in (1, wanted) for t in (cos, sin) for size, wanted in zip(t.shape[2:5], local, strict=True)):
        return None
    dims = torch.broadcast_shapes(*(t.shape[:2] for t in tensors))
    x, cos, sin = (t.expand(*dims, *local, width) for t in (x, cos, sin))
    matrix = matrix.expand(*dims, *matrix.shape[2:])
    out = torch.empty((*dims, *local, width), dtype=x.dtype, device=x.device)
    rows, lanes = math.prod(local), math.prod(dims)
    side = ROTARY_VALUES // width * (1 if rows * lanes <= MOST_ROTARY_ROWS else 8)
    _rotate[(triton.cdiv(rows, side), lanes)](
        *(x, cos, sin, matrix, out, rows, dims[1], local[1], local[2]),
        *(*x.stride()[:5], *cos.stride()[:5], *sin.stride()[:5], *matrix.stride()[:2], matrix.stride(4)),
        *(side, width),
        num_warps=1 if side * width <= ROTARY_VALUES else 4,
        enable_fp_fusion=False,  # torch rounds both products before it adds them
    )
    return out


def normalize_rms(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor | None:
    """Rows of bfloat16 divided by their root mean square, times a weight; None where that is not for the kernel."""
    width = x.shape[-1]
    parameters = (x,) if weight is None else (x, weight)
    if any(t.dtype is not torch.bfloat16 or t.requires_grad for t in parameters) or not 0 < width <= LONGEST_ROW:
        return None
    source = x.contiguous()
    out = torch.empty_like(source)
    padded = triton.next_power_of_2(width)
    _normalize[(source.numel() // width,)](
        *(source, source if weight is None else weight.contiguous(), out, width, 1 / width, epsilon),
        *(weight is not None, padded),
        num_warps=min(max(padded // 512, 1), 16),
        enable_fp_fusion=False,
    )
    return out


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    normalize_rms(torch.ones((1, 32), dtype=torch.bfloat16, device="cuda"), None, 0.0)
