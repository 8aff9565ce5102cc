"""moreh's reductions and matmuls with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case, On

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, bfloat16, int32

SHAPE = (2, 3, 33, 40)


def several(*shapes: tuple[int, ...], args: tuple[Any, ...] = (), low: float = -1.5, **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [*(torch.rand(shape, generator=g) * 3 + low for shape in shapes), *args], options

    return make


def with_bias(*shapes: tuple[int, ...], bias: tuple[int, ...], **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        tensors = [torch.randn(shape, generator=g) for shape in shapes]
        return tensors, {**options, "bias": torch.randn(bias, generator=g)}

    return make


def summed(grad: tuple[int, ...], shape: tuple[int, ...], **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [torch.randn(grad, generator=g)], {"input": torch.randn(shape, generator=g), **options}

    return make


def written(*shapes: tuple[int, ...], **outputs: tuple[int, ...]) -> Callable:
    """Gradients, which are written into tensors that are given."""

    def make(g: torch.Generator) -> Any:
        tensors = [torch.randn(shape, generator=g) for shape in shapes]
        return tensors, {name: torch.randn(shape, generator=g) for name, shape in outputs.items()}

    return make


def picks(g: torch.Generator) -> Any:
    index = On(torch.randint(0, 5, (9,), generator=g).int(), int32, ROW_MAJOR_LAYOUT)
    return [torch.randn(4, 5, 6, generator=g), [index], [1]], {}


def gradients(g: torch.Generator) -> Any:
    return [[torch.randn(1, 1, 3, 5, generator=g), torch.randn(1, 1, 1, 7, generator=g)], 1.0], {}


def normed(g: torch.Generator) -> Any:
    values = torch.rand(3, 5, generator=g) * 3 + 0.5
    return [values, values.norm(dim=1, keepdim=True), torch.randn(3, 1, generator=g)], {
        "p": 2.0,
        "dim": 1,
        "keepdim": True,
    }


CASES = [
    *(Case(f"ttnn.moreh_sum/{dim}", several(SHAPE, dim=dim, keepdim=True), pcc=0.99) for dim in (0, 1, 2, 3, [1, 2])),
    Case("ttnn.moreh_sum/dropped", several(SHAPE, dim=2), pcc=0.99),
    Case("ttnn.moreh_sum_backward/kept", summed((2, 1, 33, 40), SHAPE, dim=1, keepdim=True)),
    Case("ttnn.moreh_sum_backward/dropped", summed((2, 33, 40), SHAPE, dim=1)),
    Case("ttnn.moreh_mean/one", several(SHAPE, dim=3, keepdim=True), pcc=0.99),
    Case("ttnn.moreh_mean_backward", several((2, 3, 1, 40), dim=2, keepdim=True, input_grad_shape=SHAPE)),
    Case("ttnn.moreh_cumsum", several(SHAPE, args=(1,))),
    Case("ttnn.moreh_cumsum_backward", several(SHAPE, args=(1,))),
    Case("ttnn.moreh_abs_pow", several((5, 40), args=(2.5,))),
    *(Case(f"ttnn.moreh_norm/{p}", several(SHAPE, p=p, dim=3, keepdim=True), pcc=0.99) for p in (1.0, 2.0, float("inf"))),
    Case("ttnn.moreh_norm_backward", normed, pcc=0.999),
    Case("ttnn.moreh_clip_grad_norm", gradients, pcc=0.0),
    Case("ttnn.moreh_bmm", several((3, 33, 40), (3, 40, 50))),
    Case("ttnn.moreh_bmm_backward", written(
        (3, 33, 50), (3, 33, 40), (3, 40, 50), input_grad=(3, 33, 40), mat2_grad=(3, 40, 50)), (bfloat16,)),
    Case("ttnn.moreh_matmul/broadcast", several((2, 1, 33, 40), (3, 40, 50))),
    Case("ttnn.moreh_matmul/transposed", several((2, 40, 33), (50, 40), transpose_input=True, transpose_other=True)),
    Case("ttnn.moreh_matmul/bias", with_bias((2, 33, 40), (40, 50), bias=(1, 50))),
    Case("ttnn.moreh_matmul_backward", written(
        (2, 3, 33, 50), (2, 1, 33, 40), (3, 40, 50), input_a_grad=(2, 1, 33, 40), input_b_grad=(3, 40, 50)),
        (bfloat16,)),
    Case("ttnn.moreh_dot", several((1, 1, 1, 64), (1, 1, 1, 64)), pcc=0.0),
    Case("ttnn.moreh_dot_backward", written((1, 1, 1, 1), (1, 1, 1, 64), (1, 1, 1, 64), input_grad=(1, 1, 1, 64),
         other_grad=(1, 1, 1, 64)), (bfloat16,)),
    Case("ttnn.moreh_linear/plain", several((2, 33, 40), (50, 40))),
    Case("ttnn.moreh_linear/bias", with_bias((2, 33, 40), (50, 40), bias=(1, 50))),
    Case("ttnn.moreh_linear_backward", written(
        (2, 33, 50), (2, 33, 40), (50, 40), bias=(1, 50), input_grad=(2, 33, 40), weight_grad=(50, 40), bias_grad=(1, 50)),
        (bfloat16,), pcc=0.999),
    Case("ttnn.moreh_getitem", picks, (bfloat16,), layouts=(ROW_MAJOR_LAYOUT,)),
    Case("ttnn.moreh_fold", several((2, 12, 9), output_size=(4, 4), kernel_size=(2, 2)), layouts=(ROW_MAJOR_LAYOUT,)),
]  # fmt: skip
