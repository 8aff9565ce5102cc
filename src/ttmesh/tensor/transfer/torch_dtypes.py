"""The torch dtype of values that come back from a device, by format."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType

_TORCH_DTYPES = {
    DataType.UINT8: torch.uint8,
    DataType.UINT16: torch.uint16,
    DataType.UINT32: torch.uint32,
    DataType.INT8: torch.int8,
    DataType.INT32: torch.int32,
    DataType.FLOAT32: torch.float32,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.BFLOAT8_B: torch.float32,
    DataType.BFLOAT4_B: torch.float32,
}


def ttnn_dtype_to_torch_dtype(dtype: DataType) -> torch.dtype:
    """The torch dtype of a format; KeyError for others."""
    return _TORCH_DTYPES[dtype]
