"""Files in safetensors format: their headers are read, large tensors of floats in them are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ttmesh.dryrun.host_tensors import LARGE_BYTES

FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


class TensorFile:
    """An open file of tensors; large tensors of floats come without values."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def get_tensor(self, name: str) -> torch.Tensor:
        """The tensor of this name."""
        header = self._file.get_slice(name)
        shape, dtype = header.get_shape(), FLOATS.get(header.get_dtype())
        if dtype is not None and torch.Size(shape).numel() * dtype.itemsize >= LARGE_BYTES:
            return torch.empty(shape, dtype=dtype, device="meta")
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def __enter__(self) -> TensorFile:
        self._file.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.__exit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def without_large_tensors(open_file: Callable[..., Any]) -> Callable[..., TensorFile]:
    """A function like safetensors' `safe_open` whose files give large tensors without values."""

    def safe_open(*args: Any, **options: Any) -> TensorFile:
        return TensorFile(open_file(*args, **options))

    return safe_open
