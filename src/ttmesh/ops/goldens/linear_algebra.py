"""Matmuls with bias and activation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ttmesh.ops.goldens.elementwise import activate

TILE = 32


def attn_matmul(input_tensor_a: Tensor, input_tensor_b: Tensor, compute_with_storage_grid_size: Any = None) -> Tensor:
    matrices = torch.repeat_interleave(input_tensor_b, input_tensor_a.shape[1] // input_tensor_b.shape[1], 1)
    return torch.einsum("xhuk,uhkn->xhun", input_tensor_a, matrices)


def attn_matmul_from_cache(
    input_tensor_a: Tensor, input_tensor_b: Tensor, *, num_tokens: int, transpose_hw: bool, **_: Any
) -> Tensor:
    matrices = input_tensor_b[:, 0, : -(-num_tokens // TILE) * TILE]
    return torch.einsum("xhuk,unk->xhun" if transpose_hw else "xhuk,ukn->xhun", input_tensor_a, matrices)


def matmul_decode(
    input_tensor_a: Tensor, input_tensor_b: Tensor, *, partial_width_sharded: bool = False, **_: Any
) -> Tensor:
    a, b = input_tensor_a, input_tensor_b
    rows = a.shape[-1]
    batch = a.shape[0] * a.shape[1] if a.dim() == 4 else 1
    if batch > 1:
        per_block, matrix = b.shape[-2] // rows, b.reshape(b.shape[-2:])
        width = matrix.shape[1] // (batch // per_block)
        blocks = []
        for i in range(batch):
            block, row = divmod(i, per_block)
            blocks.append(matrix[row * rows : (row + 1) * rows, block * width : (block + 1) * width])
        return (a.reshape(batch, *a.shape[2:]) @ torch.stack(blocks)).reshape(*a.shape[:-1], width)
    if partial_width_sharded and rows > b.shape[-2]:
        b = torch.cat(b.chunk(rows // b.shape[-2], dim=-1), dim=-2)
    return a @ b


def sparse_matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    sparsity: Tensor,
    program_config: Any = None,
    nnz: int | None = None,
    is_input_a_sparse: bool = False,
    is_input_b_sparse: bool = True,
) -> Tensor:
    a, flags = input_tensor_a, (sparsity != 0).float()
    if is_input_a_sparse:
        result = torch.matmul(a, input_tensor_b)
        return result * flags.reshape(*result.shape[:-2], 1, 1)
    result = torch.einsum("abmk,ekn->abemn", a.float(), input_tensor_b[0].float())
    return (result * flags.reshape(*result.shape[:-2], 1, 1)).unsqueeze(2)


def minimal_matmul(
    input_tensor: Tensor | list[Tensor],
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    fused_activation: Any = None,
    fuse_swiglu: bool = False,
) -> Tensor:
    if not isinstance(input_tensor, Tensor):
        parts = [torch.nn.functional.pad(part, (0, -part.shape[-1] % TILE)) for part in input_tensor]
        input_tensor = torch.cat(parts, -1)[..., : weight_tensor.shape[-2]]
    result = torch.matmul(input_tensor, weight_tensor)
    result = result if bias_tensor is None else result + bias_tensor
    if fuse_swiglu:
        tiles = torch.split(result, TILE, -1)
        gate, up = torch.cat(tiles[::2], -1), torch.cat(tiles[1::2], -1)
        return gate * torch.sigmoid(gate) * up
    return result if fused_activation is None else activate(result, [fused_activation])


def minimal_matmul_split(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    chunks: int = 3,
    dim: int = -1,
    bias_tensor: Tensor | None = None,
    fused_activation: Any = None,
) -> list[Tensor]:
    return list(minimal_matmul(input_tensor, weight_tensor, bias_tensor, fused_activation).chunk(chunks, dim))


def matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Any = None,
    program_config: Any = None,
) -> Tensor:
    return linear(input_tensor_a, input_tensor_b, None, transpose_a, transpose_b, activation, program_config)


def linear(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    bias: Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Any = None,
    program_config: Any = None,
) -> Tensor:
    a, b = (x.mT if transpose else x for x, transpose in ((input_tensor_a, transpose_a), (input_tensor_b, transpose_b)))
    result = torch.matmul(a, b) if bias is None else torch.matmul(a, b) + bias
    final_activation = getattr(program_config, "fused_activation", None) or activation
    return result if final_activation is None else activate(result, [final_activation])


def addmm(
    input_tensor: Tensor,
    mat1_tensor: Tensor,
    mat2_tensor: Tensor,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    return torch.addmm(input_tensor, mat1_tensor, mat2_tensor, alpha=alpha, beta=beta)


# Fourier transforms, and the passes that TT-NN composes them of

Pair = tuple[Tensor, Tensor]


def fft(input_real: Tensor, input_imag: Tensor | None = None, precision: str = "precise") -> Pair:
    return _to_parts(torch.fft.fft(_to_complex(input_real, input_imag)))


def ifft(spectrum_real: Tensor, spectrum_imag: Tensor, precision: str = "precise") -> Pair:
    return _to_parts(torch.fft.ifft(_to_complex(spectrum_real, spectrum_imag)))


def bluestein_fft(input_real: Tensor, input_imag: Tensor | None, N: int, precision: str = "precise") -> Pair:
    return fft(input_real, input_imag)


def complex_mul(a_real: Tensor, a_imag: Tensor, b_real: Tensor, b_imag: Tensor) -> Pair:
    return _to_parts(_to_complex(a_real, a_imag) * _to_complex(b_real, b_imag))


def apply_twiddles(input_real: Tensor, input_imag: Tensor, N1: int, N2: int) -> Pair:
    rows = torch.arange(input_real.numel() // N1) % N2
    return _turn(_to_complex(input_real, input_imag), rows, N1 * N2)


def apply_twiddles_xl(input_real: Tensor, input_imag: Tensor, P: int, big_modulus: int, full_N: int) -> Pair:
    rows = torch.arange(input_real.numel() // P) % big_modulus
    return _turn(_to_complex(input_real, input_imag), rows, full_N)


def transpose_rm(input: Tensor) -> Tensor:
    return input.transpose(-1, -2)


def _turn(values: Tensor, rows: Tensor, steps: int) -> Pair:
    columns = torch.arange(values.shape[-1])
    angles = -2 * torch.pi * torch.outer(rows.double(), columns.double()) / steps
    twiddled = values.reshape(-1, values.shape[-1]) * torch.polar(torch.ones_like(angles), angles)
    return _to_parts(twiddled.reshape(values.shape))


def _to_complex(real: Tensor, imag: Tensor | None) -> Tensor:
    return torch.complex(real.double(), torch.zeros_like(real).double() if imag is None else imag.double())


def _to_parts(values: Tensor) -> Pair:
    return values.real.float(), values.imag.float()
