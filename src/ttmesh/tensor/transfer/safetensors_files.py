"""Named torch tensors in safetensors files, written atomically whatever version of safetensors is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ttmesh.base.atomic_files import replace_file
from ttmesh.base.errors import MeshError

ALIGNMENT = 8  # of the header's end, so that the values of every dtype are aligned
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorFileError(MeshError):
    """A file that is not a safetensors file, or not a whole one; `reason` says it without the path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read ({reason})", expected="a whole safetensors file", fix="Write it again."
        )
        self.reason = reason


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Replace a file by these tensors and texts; raises OSError where it cannot be written, and leaves it as it was."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps all of them aligned
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _dtype_name(name, tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with replace_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and texts of a file; their values are read from the disk when they are used."""
    if not path.is_file():  # opening a pipe would wait for its writer
        raise TensorFileError(path, "it is not a file" if path.exists() else "it does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise TensorFileError(path, reason) from None


def _dtype_name(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in DTYPE_NAMES:
        raise MeshError(
            f"{name} is of {tensor.dtype}, which files cannot hold",
            expected=f"one of {[str(dtype) for dtype in DTYPE_NAMES]}",
            fix="Cast it first.",
        )
    return DTYPE_NAMES[tensor.dtype]
