"""Gradients of operations that exist for complex and for real tensors: grad · conj(derivative)."""

from __future__ import annotations

from ttmesh.ops.complex.complex_tensors import ComplexTensor, Memory, complex_abs_bw, complex_reciprocal
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.elementwise.binary_backward import binary_bw
from ttmesh.ops.elementwise.unary_backward import unary_bw
from ttmesh.tensor.tensor import Tensor

Grads = list[ComplexTensor]


def _call_binary(name: str, a: Tensor, b: Tensor | float, memory_config: Memory) -> Tensor:
    result: Tensor = binary[name](a, b, memory_config=memory_config)
    return result


def _multiply(a: ComplexTensor, b: ComplexTensor, memory: Memory) -> ComplexTensor:
    real_product, imag_product = (
        _call_binary("multiply", a.real, b.real, memory),
        _call_binary("multiply", a.imag, b.imag, memory),
    )
    cross_product, other_cross_product = (
        _call_binary("multiply", a.real, b.imag, memory),
        _call_binary("multiply", a.imag, b.real, memory),
    )
    return ComplexTensor(
        (
            _call_binary("subtract", real_product, imag_product, memory),
            _call_binary("add", cross_product, other_cross_product, memory),
        )
    )


def _scale(z: ComplexTensor, factor: float, memory: Memory) -> ComplexTensor:
    scaled = (_call_binary("multiply", component, factor, memory) for component in (z.real, z.imag))
    return ComplexTensor((next(scaled), next(scaled)))


def _conjugate(z: ComplexTensor, memory: Memory) -> ComplexTensor:
    return ComplexTensor((z.real, _call_binary("multiply", z.imag, -1.0, memory)))


def _add_bw(
    grad_tensor: ComplexTensor, input_tensor: ComplexTensor, other_tensor: ComplexTensor, alpha: float,
    memory_config: Memory,
) -> Grads:  # fmt: skip
    return [grad_tensor, _scale(grad_tensor, alpha, memory_config)]


def _sub_bw(
    grad_tensor: ComplexTensor, input_tensor: ComplexTensor, other_tensor: ComplexTensor, alpha: float,
    memory_config: Memory,
) -> Grads:  # fmt: skip
    return [grad_tensor, _scale(grad_tensor, -alpha, memory_config)]


def _mul_bw(
    grad_tensor: ComplexTensor, input_tensor: ComplexTensor, other_tensor: ComplexTensor, memory_config: Memory
) -> Grads:
    operands = (other_tensor, input_tensor)
    return [_multiply(grad_tensor, _conjugate(z, memory_config), memory_config) for z in operands]


def _div_bw(
    grad_tensor: ComplexTensor, input_tensor: ComplexTensor, other_tensor: ComplexTensor, memory_config: Memory
) -> Grads:
    inverse = complex_reciprocal(other_tensor, memory_config)
    first = _multiply(grad_tensor, _conjugate(inverse, memory_config), memory_config)
    quotient = _multiply(input_tensor, inverse, memory_config)
    second = _multiply(first, _conjugate(quotient, memory_config), memory_config)
    return [first, _scale(second, -1.0, memory_config)]


def _reciprocal_bw(grad_tensor: ComplexTensor, input_tensor: ComplexTensor, memory_config: Memory) -> Grads:
    inverse = _conjugate(complex_reciprocal(input_tensor, memory_config), memory_config)
    result = _multiply(_multiply(grad_tensor, inverse, memory_config), inverse, memory_config)
    return [_scale(result, -1.0, memory_config)]


unary_bw["abs"].dispatch_type(ComplexTensor, complex_abs_bw)
unary_bw["reciprocal"].dispatch_type(ComplexTensor, _reciprocal_bw)
binary_bw["add"].dispatch_type(ComplexTensor, _add_bw)
binary_bw["sub"].dispatch_type(ComplexTensor, _sub_bw)
binary_bw["mul"].dispatch_type(ComplexTensor, _mul_bw)
binary_bw["div"].dispatch_type(ComplexTensor, _div_bw)
