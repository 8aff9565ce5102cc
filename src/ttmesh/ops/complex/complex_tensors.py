"""Complex tensors: a pair of tensors, and the operations TT-NN composes for it."""

from __future__ import annotations

from typing import Any

from ttmesh.base.errors import ShapeError
from ttmesh.ops.catalogue.definition import composite
from ttmesh.ops.creation.full import zeros_like
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.elementwise.ternary import where
from ttmesh.ops.elementwise.unary import unary
from ttmesh.ops.goldens import autodiff as goldens
from ttmesh.ops.goldens import elementwise
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
        """Free both parts."""
        self.real.deallocate()
        self.imag.deallocate()


def _times(a: Any, b: Any, memory_config: Memory) -> Tensor:
    product: Tensor = binary["multiply"](a, b, memory_config=memory_config)
    return product


def _plus(a: Any, b: Any, memory_config: Memory) -> Tensor:
    total: Tensor = binary["add"](a, b, memory_config=memory_config)
    return total


def _apply(name: str, x: Tensor, memory_config: Memory) -> Tensor:
    result: Tensor = unary[name](x, memory_config=memory_config)
    return result


def _unless_zero(size: Tensor, value: Tensor, memory_config: Memory) -> Tensor:
    """The value, 0 where the size is 0."""
    chosen: Tensor = where(size, value, 0.0, memory_config=memory_config)
    return chosen


@composite("ttnn.complex_tensor", golden=elementwise.complex_tensor)
def complex_tensor(real: Tensor, imag: Tensor) -> ComplexTensor:
    """A complex tensor of two parts."""
    if tuple(real.padded_shape) != tuple(imag.padded_shape):
        raise ShapeError(
            "Tensor shapes of real and imag should be identical",
            expected=f"{real.shape!r} twice, not {imag.shape!r}",
            fix="Reshape one part.",
        )
    return ComplexTensor((real, imag))


@composite("ttnn.real", golden=elementwise.real)
def real(input_tensor: ComplexTensor) -> Tensor:
    """The real part itself."""
    return input_tensor.real


@composite("ttnn.imag", golden=elementwise.imag)
def imag(input_tensor: ComplexTensor) -> Tensor:
    """The imaginary part itself."""
    return input_tensor.imag


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
    """Size and phase, given as the two parts, as a complex tensor."""
    size, phase = input_tensor.real, input_tensor.imag
    return ComplexTensor(
        (
            _times(size, _apply("cos", phase, memory_config), memory_config),
            _times(size, _apply("sin", phase, memory_config), memory_config),
        )
    )


def complex_abs(input_tensor: ComplexTensor, memory_config: Memory) -> Tensor:
    """The size."""
    size: Tensor = binary["hypot"](input_tensor.real, input_tensor.imag, memory_config=memory_config)
    return size


def complex_reciprocal(input_tensor: ComplexTensor, memory_config: Memory) -> ComplexTensor:
    """conj(z) / |z|²."""
    re, im = (_apply("square", part, memory_config) for part in (input_tensor.real, input_tensor.imag))
    scale = _apply("reciprocal", _plus(re, im, memory_config), memory_config)
    negated = _apply("neg", input_tensor.imag, memory_config)
    return ComplexTensor((_times(input_tensor.real, scale, memory_config), _times(negated, scale, memory_config)))


unary["abs"].also_for(ComplexTensor, complex_abs)
unary["reciprocal"].also_for(ComplexTensor, complex_reciprocal)


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
    re, im = input_tensor.real, input_tensor.imag
    squared = _plus(_apply("square", re, memory_config), _apply("square", im, memory_config), memory_config)
    scale = _times(grad_tensor, _apply("reciprocal", squared, memory_config), memory_config)
    parts = (_times(_apply("neg", im, memory_config), scale, memory_config), _times(re, scale, memory_config))
    return [ComplexTensor((
        _unless_zero(squared, parts[0], memory_config), _unless_zero(squared, parts[1], memory_config),
    ))]  # fmt: skip


def complex_abs_bw(grad_tensor: Tensor, input_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """grad · z / |z|, 0 at 0."""
    sign = _signum(input_tensor, memory_config)
    return [ComplexTensor((
        _times(grad_tensor, sign.real, memory_config), _times(grad_tensor, sign.imag, memory_config),
    ))]  # fmt: skip


@composite("ttnn.polar_bw", golden=goldens.polar_bw)
def polar_bw(grad_tensor: ComplexTensor, input_tensor: ComplexTensor, memory_config: Memory) -> list[ComplexTensor]:
    """Gradients of size and phase, as the two parts."""
    result = polar(input_tensor, memory_config=memory_config)
    sign = _signum(result, memory_config)
    turned = ComplexTensor((_apply("neg", result.imag, memory_config), result.real))
    return [ComplexTensor((
        _real_of_product(grad_tensor, sign, memory_config), _real_of_product(grad_tensor, turned, memory_config),
    ))]  # fmt: skip


def _signum(z: ComplexTensor, memory_config: Memory) -> ComplexTensor:
    size = complex_abs(z, memory_config)
    inverse = _apply("reciprocal", size, memory_config)
    return ComplexTensor((
        _unless_zero(size, _times(z.real, inverse, memory_config), memory_config),
        _unless_zero(size, _times(z.imag, inverse, memory_config), memory_config),
    ))  # fmt: skip


def _real_of_product(grad: ComplexTensor, z: ComplexTensor, memory_config: Memory) -> Tensor:
    """The real part of conj(grad) · z."""
    return _plus(_times(grad.real, z.real, memory_config), _times(grad.imag, z.imag, memory_config), memory_config)
