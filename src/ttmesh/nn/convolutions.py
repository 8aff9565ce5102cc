"""A convolution for training: its weights are stored as TT-NN's prepared matrix, so that no step converts them."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, bfloat16
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.layers import Layer
from ttmesh.nn.parameters import Parameter
from ttmesh.ops.conv.conv2d import conv2d
from ttmesh.ops.conv.conv_weights import from_matrix, to_matrix
from ttmesh.tensor.tensor import Tensor


class Conv2d(Layer):
    """A convolution over [batch, height, width, channels]; replicated. `weight` is torch's [out, in, h, w]."""

    def __init__(
        self,
        mesh: MeshDevice,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        stride: int = 1,
        padding: int = 0,
        dtype: DataType = bfloat16,
    ) -> None:
        self._mesh, self._stride, self._padding = mesh, stride, padding
        self._out, self._in, *taps = weight.shape
        self._kernel = (taps[0], taps[1])
        self.weight = Parameter(to_matrix(weight.detach(), 1), mesh, dtype=dtype)
        padded = None if bias is None else torch.nn.functional.pad(bias.detach(), (0, -self._out % 32))
        self.bias = None if padded is None else Parameter(padded.reshape(1, 1, 1, -1), mesh, dtype=dtype)

    def __call__(self, x: Tensor, size: tuple[int, int, int]) -> tuple[Tensor, tuple[int, int, int]]:
        """The output [1, 1, batch · height · width, channels] and its (batch, height, width), given those of the input."""
        batch, height, width = size
        output, (rows, columns) = conv2d(
            input_tensor=x, weight_tensor=self.weight.tensor, device=self._mesh, in_channels=self._in,
            out_channels=self._out, batch_size=batch, input_height=height, input_width=width,
            kernel_size=self._kernel, stride=(self._stride, self._stride), padding=(self._padding, self._padding),
            dilation=(1, 1), groups=1, bias_tensor=None if self.bias is None else self.bias.tensor,
            return_output_dim=True,
        )  # fmt: skip
        return output, (batch, rows, columns)

    def filters(self) -> torch.Tensor:
        """The weights in torch's shape [out, in, height, width]."""
        return from_matrix(self.weight.to_torch(), self._out, self._in, self._kernel, 1)
