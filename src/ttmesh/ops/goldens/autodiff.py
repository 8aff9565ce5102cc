"""Gradients by torch's automatic differentiation of the forward operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Function = Callable[..., Tensor]
Golden = Callable[..., list[Tensor]]


def compute_gradients(forward: Function, grad: Tensor, *operands: Any, **options: Any) -> list[Tensor]:
    """Gradients of the tensor operands; real and imaginary parts are concatenated, as TT-NN returns them."""
    with torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x for x in operands]
        out = forward(*leaves, **options)
        weighted = out * grad.conj()  # backward's gradient argument would check shapes, which imports a symbolic solver
        torch.autograd.backward((weighted.real if weighted.is_complex() else weighted).sum())
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves if isinstance(leaf, Tensor)]
    return [torch.cat((g.real, g.imag), -1) if g.is_complex() else g for g in grads]


# Forward functions of one operand; parameters have the names of the backward operation.
FORWARD: dict[str, Function] = {
    "celu": lambda x, alpha=1.0: F.celu(x, alpha),
    "clamp": lambda x, min=None, max=None: torch.clamp(x, min, max),
    "clip": lambda x, min=None, max=None: torch.clip(x, min, max),
    "elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "fill": lambda x: x * 0,
    "fill_zero": lambda x: x * 0,
    "gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate),
    "hardshrink": lambda x, lambd=0.5: F.hardshrink(x, lambd),
    "hardtanh": lambda x, min=-1.0, max=1.0: F.hardtanh(x, min, max),
    "leaky_relu": lambda x, negative_slope=0.01: F.leaky_relu(x, negative_slope),
    "log_sigmoid": F.logsigmoid,
    "logit": lambda x: torch.logit(x),
    "logiteps": lambda x, eps=0.0: torch.logit(x, eps=eps),
    "multigammaln": lambda x: torch.special.multigammaln(x, 4),
    "polygamma": lambda x, n: torch.special.polygamma(n, x),
    "pow": lambda x, exponent: torch.pow(x, exponent),
    "rdiv": lambda x, scalar, rounding_mode=None: torch.div(scalar, x, rounding_mode=rounding_mode),
    "rpow": lambda x, exponent: torch.pow(exponent, x),
    "softplus": lambda x, beta=1.0, threshold=20.0: F.softplus(x, beta, threshold),
    "softshrink": lambda x, lambd=0.5: F.softshrink(x, lambd),
    "threshold": lambda x, min, max: F.threshold(x, min, max),
}
for _name in (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "digamma", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "rad2deg",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
):  # fmt: skip
    FORWARD[_name] = getattr(torch, _name)
for _name in ("hardsigmoid", "hardswish", "relu6", "selu", "silu", "softsign", "tanhshrink"):
    FORWARD[_name] = getattr(F, _name)
FORWARD["i0"] = torch.special.i0

PARAMETERS = (
    "alpha", "approximate", "beta", "eps", "exponent", "lambd", "max", "min", "n", "negative_slope", "rounding_mode",
    "scalar", "threshold",
)  # fmt: skip


def _select_parameters(options: dict[str, Any]) -> dict[str, Any]:
    """The options that change a value."""
    return {name: value for name, value in options.items() if name in PARAMETERS}


def _unary_gradient(forward: Function) -> Golden:
    def golden(grad_tensor: Tensor, input_tensor: Tensor, *args: Any, **options: Any) -> list[Tensor]:
        return compute_gradients(lambda x: forward(x, *args, **_select_parameters(options)), grad_tensor, input_tensor)

    return golden


UNARY_BW: dict[str, Golden] = {name: _unary_gradient(forward) for name, forward in FORWARD.items()}


def experimental_gelu_bw(grad: Tensor, x: Tensor, approximate: str = "none", **_: Any) -> list[Tensor]:
    return compute_gradients(lambda y: F.gelu(y, approximate=approximate), grad, x)


FORWARD_OF_TWO: dict[str, Function] = {
    "add": lambda a, b, alpha=1.0: torch.add(a, b, alpha=alpha),
    "addalpha": lambda a, b, alpha=1.0: torch.add(a, b, alpha=alpha),
    "assign": lambda a, b=None: a if b is None else a + b,
    "atan2": torch.atan2,
    "bias_gelu": lambda a, b, approximate="none": F.gelu(a + b, approximate=approximate),
    "div": lambda a, b, rounding_mode=None: torch.div(a, b, rounding_mode=rounding_mode),
    "div_no_nan": lambda a, b: a / b if b else a * 0,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "ldexp": torch.ldexp,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "max": torch.maximum,
    "min": torch.minimum,
    "mul": torch.mul,
    "remainder": torch.remainder,
    "rsub": torch.rsub,
    "squared_difference": lambda a, b: torch.square(a - b),
    "sub": lambda a, b, alpha=1.0: torch.sub(a, b, alpha=alpha),
    "subalpha": lambda a, b, alpha=1.0: torch.sub(a, b, alpha=alpha),
    "xlogy": torch.xlogy,
}


def _binary_gradient(forward: Function) -> Golden:
    def golden(grad_tensor: Tensor, *operands: Any, **options: Any) -> list[Tensor]:
        pair, parameters = operands[:2], operands[2:]
        return compute_gradients(lambda *x: forward(*x, *parameters, **_select_parameters(options)), grad_tensor, *pair)

    return golden


BINARY_BW: dict[str, Golden] = {name: _binary_gradient(forward) for name, forward in FORWARD_OF_TWO.items()}


def addcmul_bw(grad_tensor: Tensor, a: Tensor, b: Tensor, c: Tensor, alpha: float) -> list[Tensor]:
    return compute_gradients(lambda x, y, z: torch.addcmul(x, y, z, value=alpha), grad_tensor, a, b, c)


def addcdiv_bw(grad_tensor: Tensor, a: Tensor, b: Tensor, c: Tensor, alpha: float) -> list[Tensor]:
    return compute_gradients(lambda x, y, z: torch.addcdiv(x, y, z, value=alpha), grad_tensor, a, b, c)


def lerp_bw(grad_tensor: Tensor, a: Tensor, b: Tensor, weight: Any) -> list[Tensor]:
    return compute_gradients(torch.lerp, grad_tensor, a, b, weight)


def where_bw(grad: Tensor, predicate: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    return compute_gradients(lambda x, y: torch.where(predicate != 0, x, y), grad, a, b)


def concat_bw(grad_tensor: Tensor, input_tensor_a: Tensor, input_tensor_b: Tensor, dim: int = 0) -> list[Tensor]:
    return compute_gradients(lambda *x: torch.cat(x, dim), grad_tensor, input_tensor_a, input_tensor_b)


def repeat_bw(grad_tensor: Tensor, input_tensor: Tensor, shape: Sequence[int]) -> list[Tensor]:
    if 0 in tuple(shape):
        return [torch.zeros_like(input_tensor)]
    return compute_gradients(lambda x: x.repeat(*shape), grad_tensor, input_tensor)


def prod_bw(grad_tensor: Tensor, input_tensor: Tensor, dim: int | None = None) -> list[Tensor]:
    if dim is None:
        return compute_gradients(torch.prod, grad_tensor.flatten()[0], input_tensor)
    return compute_gradients(lambda x: x.prod(dim, keepdim=True), grad_tensor.narrow(dim, 0, 1), input_tensor)


def real_bw(grad: Tensor, z: Tensor) -> list[Tensor]:
    return compute_gradients(torch.real, grad, z)


def imag_bw(grad: Tensor, z: Tensor) -> list[Tensor]:
    return compute_gradients(torch.imag, grad, z)


def conj_bw(grad: Tensor, *z: Tensor) -> list[Tensor]:
    return compute_gradients(torch.conj, grad, *(z or (grad,)))


def angle_bw(grad: Tensor, z: Tensor) -> list[Tensor]:
    return compute_gradients(torch.angle, grad, z)


def polar_bw(grad: Tensor, z: Tensor) -> list[Tensor]:
    return compute_gradients(lambda x: torch.polar(torch.real(x), torch.imag(x)), grad, z)
