"""Gradients of operations on complex tensors that share their name with those on real ones: grad · conj(derivative)."""

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


def _product(a: ComplexTensor, b: ComplexTensor, memory: Memory) -> ComplexTensor:
    first, second = _call_binary("multiply", a.real, b.real, memory), _call_binary("multiply", a.imag, b.imag, memory)
    cross, other = _call_binary("multiply", a.real, b.imag, memory), _call_binary("multiply", a.imag, b.real, memory)
    return ComplexTensor((_call_binary("subtract", first, second, memory), _call_binary("add", cross, other, memory)))


def _scale(z: ComplexTensor, factor: float, memory: Memory) -> ComplexTensor:
    parts = (_call_binary("multiply", part, factor, memory) for part in (z.real, z.imag))
    return ComplexTensor((next(parts), next(parts)))


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
    return [_product(grad_tensor, _conjugate(z, memory_config), memory_config) for z in operands]


def _div_bw(
    grad_tensor: ComplexTensor, input_tensor: ComplexTensor, other_tensor: ComplexTensor, memory_config: Memory
) -> Grads:
    inverse = complex_reciprocal(other_tensor, memory_config)
    first = _product(grad_tensor, _conjugate(inverse, memory_config), memory_config)
    quotient = _product(input_tensor, inverse, memory_config)
    second = _product(first, _conjugate(quotient, memory_config), memory_config)
    return [first, _scale(second, -1.0, memory_config)]


def _reciprocal_bw(grad_tensor: ComplexTensor, input_tensor: ComplexTensor, memory_config: Memory) -> Grads:
    inverse = _conjugate(complex_reciprocal(input_tensor, memory_config), memory_config)
    result = _product(_product(grad_tensor, inverse, memory_config), inverse, memory_config)
    return [_scale(result, -1.0, memory_config)]


unary_bw["abs"].also_for(ComplexTensor, complex_abs_bw)
unary_bw["reciprocal"].also_for(ComplexTensor, _reciprocal_bw)
binary_bw["add"].also_for(ComplexTensor, _add_bw)
binary_bw["sub"].also_for(ComplexTensor, _sub_bw)
binary_bw["mul"].also_for(ComplexTensor, _mul_bw)
binary_bw["div"].also_for(ComplexTensor, _div_bw)
