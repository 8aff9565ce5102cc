"""ComplexTensor, a pair of real tensors, and the operations that TT-NN composes for it."""

from __future__ import annotations

from typing import Any

from ttmesh.ops.catalogue.definition import composite
from ttmesh.ops.creation.full import ones_like, zeros_like
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.elementwise.ternary import where
from ttmesh.ops.elementwise.unary import unary
from ttmesh.ops.goldens import autodiff as goldens
from ttmesh.ops.goldens import elementwise
from ttmesh.tensor.calls.conversions import to_memory_config
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

Memory = MemoryConfig | None


class ComplexTensor:
    """Real and imaginary parts of equal shape."""

    __slots__ = ("imag", "real")

    def __init__(self, real_imag: tuple[Tensor, Tensor]) -> None:
        self.real, self.imag = real_imag

    def __getitem__(self, index: int) -> Tensor:
        return (self.real, self.imag)[index]

    def deallocate(self) -> None:
        """Free the real and the imaginary tensor."""
        self.real.deallocate()
        self.imag.deallocate()


def _multiply(a: Any, b: Any, memory_config: Memory) -> Tensor:
    result: Tensor = binary["multiply"](a, b, memory_config=memory_config)
    return result


def _add(a: Any, b: Any, memory_config: Memory) -> Tensor:
    result: Tensor = binary["add"](a, b, memory_config=memory_config)
    return result


def _apply(name: str, x: Tensor, memory_config: Memory) -> Tensor:
    result: Tensor = unary[name](x, memory_config=memory_config)
    return result


def _zero_where_zero(magnitude: Tensor, value: Tensor, memory_config: Memory) -> Tensor:
    """The value, or 0 where the magnitude is 0."""
    result: Tensor = where(magnitude, value, 0.0, memory_config=memory_config)
    return result


def _zero_where(condition: Tensor, value: Tensor, memory_config: Memory) -> Tensor:
    """The value, or 0 where the condition holds."""
    result: Tensor = where(condition, 0.0, value, memory_config=memory_config)
    return result


@composite("ttnn.complex_tensor", golden=elementwise.complex_tensor)
def complex_tensor(real: Tensor, imag: Tensor) -> ComplexTensor:
    """A complex tensor of a real and an imaginary tensor."""
    return ComplexTensor((real, imag))


@composite("ttnn.real", golden=elementwise.real)
def real(input_tensor: ComplexTensor, memory_config: Memory) -> Tensor:
    """The real part, without a copy unless another memory is requested."""
    return _move_part(input_tensor.real, memory_config)


def _move_part(part: Tensor, memory_config: Memory) -> Tensor:
    if memory_config is None or memory_config == part.memory_config():
        return part
    moved: Tensor = to_memory_config(part, memory_config)
    return moved


@composite("ttnn.imag", golden=elementwise.imag)
def imag(input_tensor: ComplexTensor, memory_config: Memory) -> Tensor:
    """The imaginary part, without a copy unless another memory is requested."""
    return _move_part(input_tensor.imag, memory_config)


@composite("ttnn.angle", golden=elementwise.angle)
def angle(input_tensor: ComplexTensor, memory_config: Memory) -> Tensor:
    """The phase."""
    phase: Tensor = binary["atan2"](input_tensor.imag, input_tensor.real, memory_config=memory_config)
    return phase


@composite("ttnn.is_imag", golden=elementwise.is_imag)
def is_imag(input_tensor: ComplexTensor, memory_config: Memory) -> Tensor:
    """1 where the real part is 0."""
    return _apply("eqz", input_tensor.real, memory_config)


@composite("ttnn.is_real", golden=elementwise.is_real)
def is_real(input_tensor: ComplexTensor, memory_config: Memory) -> Tensor:
    """1 where the imaginary part is 0."""
    return _apply("eqz", input_tensor.imag, memory_config)


@composite("ttnn.conj", golden=elementwise.conj)
def conj(input_tensor: ComplexTensor, memory_config: Memory) -> ComplexTensor:
    """The conjugate; it shares the real part."""
    return ComplexTensor((input_tensor.real, _apply("neg", input_tensor.imag, memory_config)))


@composite("ttnn.polar", golden=elementwise.polar)
def polar(input_tensor: ComplexTensor, memory_config: Memory) -> ComplexTensor:
    """The complex tensor of a magnitude (the input's real part) and a phase (its imaginary part)."""
    magnitude, phase = input_tensor.real, input_tensor.imag
    return ComplexTensor(
        (
            _multiply(magnitude, _apply("cos", phase, memory_config), memory_config),
            _multiply(magnitude, _apply("sin", phase, memory_config), memory_config),
        )
    )


def complex_abs(input_tensor: ComplexTensor, memory_config: Memory) -> Tensor:
    """The magnitude."""
    magnitude: Tensor = binary["hypot"](input_tensor.real, input_tensor.imag, memory_config=memory_config)
    return magnitude


def complex_reciprocal(input_tensor: ComplexTensor, memory_config: Memory) -> ComplexTensor:
    """conj(z) / |z|²."""
    re, im = (_apply("square", component, memory_config) for component in (input_tensor.real, input_tensor.imag))
    scale = _apply("reciprocal", _add(re, im, memory_config), memory_config)
    negated = _apply("neg", input_tensor.imag, memory_config)
    return ComplexTensor((_multiply(input_tensor.real, scale, memory_config), _multiply(negated, scale, memory_config)))


unary["abs"].dispatch_type(ComplexTensor, complex_abs)
unary["reciprocal"].dispatch_type(ComplexTensor, complex_reciprocal)


# -- gradients --------------------------------------------------------------------------------------------------------


@composite("ttnn.real_bw", golden=goldens.real_bw)
def real_bw(grad_tensor: Tensor, input_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """The gradient of the real part."""
    return [ComplexTensor((grad_tensor, zeros_like(input_tensor.real, memory_config=memory_config)))]


@composite("ttnn.imag_bw", golden=goldens.imag_bw)
def imag_bw(grad_tensor: Tensor, input_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """The gradient of the imaginary part."""
    return [ComplexTensor((zeros_like(input_tensor.real, memory_config=memory_config), grad_tensor))]


@composite("ttnn.conj_bw", golden=goldens.conj_bw)
def conj_bw(grad_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """The conjugate of the gradient."""
    return [conj(grad_tensor, memory_config=memory_config)]


@composite("ttnn.angle_bw", golden=goldens.angle_bw)
def angle_bw(grad_tensor: Tensor, input_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """grad · i·z / |z|², 0 at 0."""
    re, im, memory = input_tensor.real, input_tensor.imag, memory_config
    zero = binary["logical_and"](_apply("eqz", re, memory), _apply("eqz", im, memory), memory_config=memory)
    inverse = _invert_square(re, im, memory)
    real_part = _turn_part(zero, grad_tensor, _apply("neg", im, memory), inverse, memory)
    return [ComplexTensor((real_part, _turn_part(zero, grad_tensor, re, inverse, memory)))]


def _invert_square(re: Tensor, im: Tensor, memory: Memory) -> Tensor:
    """1 / (re² + im²)."""
    squares = _apply("square", re, memory), _apply("square", im, memory)
    total = _add(*squares, memory)  # as in TT-NN, the squares keep their memory until the quotient has its own
    return _apply("reciprocal", total, memory)


def _turn_part(zero: Tensor, grad: Tensor, part: Tensor, inverse: Tensor, memory: Memory) -> Tensor:
    """grad · part · inverse, 0 at 0."""
    product = _multiply(part, inverse, memory)
    return _zero_where(zero, _multiply(grad, product, memory), memory)


def complex_abs_bw(grad_tensor: Tensor, input_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """grad · z / |z|, 0 at 0."""
    sign = _signum(input_tensor, memory_config)
    return [ComplexTensor((
        _multiply(grad_tensor, sign.real, memory_config), _multiply(grad_tensor, sign.imag, memory_config),
    ))]  # fmt: skip


@composite("ttnn.polar_bw", golden=goldens.polar_bw)
def polar_bw(grad_tensor: ComplexTensor, input_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """Gradients of magnitude and phase, as real and imaginary part."""
    memory, result = memory_config, polar(input_tensor, memory_config=memory_config)
    magnitude = complex_abs(result, memory)
    sign = ComplexTensor((_divide(result.real, magnitude, memory), _divide(result.imag, magnitude, memory)))
    del magnitude
    by_magnitude = _product(conj(grad_tensor, memory_config=memory), sign, memory).real
    turn = ComplexTensor((zeros_like(input_tensor.real, memory_config=memory), ones_like(input_tensor.imag)))
    conjugate = conj(grad_tensor, memory_config=memory)
    by_phase = _product(conjugate, _product(result, turn, memory), memory).real
    return [ComplexTensor((by_magnitude, by_phase))]


def _divide(part: Tensor, magnitude: Tensor, memory_config: Memory) -> Tensor:
    """part / magnitude, 0 where that is 0."""
    zero, inverse = _apply("eqz", magnitude, memory_config), _apply("reciprocal", magnitude, memory_config)
    return _zero_where(zero, _multiply(part, inverse, memory_config), memory_config)


def _product(a: ComplexTensor, b: ComplexTensor, memory: Memory) -> ComplexTensor:
    real_part: Tensor = binary["subtract"](
        _multiply(a.real, b.real, memory), _multiply(a.imag, b.imag, memory), memory_config=memory
    )
    return ComplexTensor(
        (real_part, _add(_multiply(a.real, b.imag, memory), _multiply(a.imag, b.real, memory), memory))
    )


def _signum(z: ComplexTensor, memory_config: Memory) -> ComplexTensor:
    magnitude = complex_abs(z, memory_config)
    inverse = _apply("reciprocal", magnitude, memory_config)
    return ComplexTensor((
        _zero_where_zero(magnitude, _multiply(z.real, inverse, memory_config), memory_config),
        _zero_where_zero(magnitude, _multiply(z.imag, inverse, memory_config), memory_config),
    ))  # fmt: skip
