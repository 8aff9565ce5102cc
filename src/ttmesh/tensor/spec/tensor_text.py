"""Tensors as text, in TT-NN's format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ttmesh.base.dtypes import FLOATS
from ttmesh.tensor.spec.memory_config import cpp
from ttmesh.tensor.spec.tensor_spec import TensorSpec

INDENT = len("ttnn.Tensor(")
KEPT = {"empty": 0, "short": 4, "full": None}  # how many items of a dim are shown when it has more


@dataclass
class PrintOptions:
    """How much of a tensor is shown, and how numbers look."""

    profile: str = "short"
    sci_mode: bool | None = None  # None decides by the values
    precision: int = 4


options = PrintOptions()


def set_printoptions(*, profile: str, sci_mode: bool | str | None = None, precision: int | None = None) -> None:
    """Choose what `print(tensor)` shows: profile "empty", "short" or "full"."""
    if profile.lower() not in KEPT:
        raise ValueError(f"profile {profile!r}; expected one of {sorted(KEPT)}")
    if isinstance(sci_mode, str):
        values_by_name = {"true": True, "false": False, "none": None, "default": None}
        if sci_mode.lower() not in values_by_name:
            raise ValueError("sci_mode must be None, bool, or str (true, false, default)")
        sci_mode = values_by_name[sci_mode.lower()]
    options.profile, options.sci_mode = profile.lower(), sci_mode
    options.precision = 4 if precision is None else precision


def tensor_text(values: torch.Tensor, spec: TensorSpec) -> str:
    """One device's shard of a tensor."""
    return f"ttnn.Tensor({_values_text(values, spec)}{_tail(spec)}"


def freed_text(spec: TensorSpec) -> str:
    """A tensor whose memory was freed."""
    return f"ttnn.Tensor(<buffer is not allocated>{_tail(spec)}"


def _tail(spec: TensorSpec) -> str:
    return f", shape={spec.shape!r}, dtype={cpp(spec.dtype)}, layout={cpp(spec.layout)})"


def _values_text(values: torch.Tensor, spec: TensorSpec) -> str:
    if options.profile == "empty":
        return "..."
    if values.is_meta:
        return "<no values: dry run>"
    if spec.dtype not in FLOATS:
        return _format_nested(values, 0, lambda number: f"{number:5d}")
    digits = options.precision
    floats = values.to(torch.float32)
    if options.sci_mode if options.sci_mode is not None else _spreads(floats):
        return _format_nested(floats, 0, lambda number: f"{number:{digits + 7}.{digits}e}")
    return _format_nested(floats, 0, lambda number: f"{number:{digits + 3}.{digits}f}")


def _spreads(values: torch.Tensor) -> bool:
    """Whether plain decimals would hide digits (TT-NN's limits)."""
    sizes = values.abs()
    sizes = sizes[torch.isfinite(sizes) & (sizes != 0)].double()
    if not sizes.numel():
        return False
    least, most = float(sizes.min()), float(sizes.max())
    return most / least > 1000.0 or most > 1.0e8 or least < 1.0e-4


def _format_nested(values: torch.Tensor, depth: int, number: Callable[[Any], str]) -> str:
    if values.dim() == 0:
        return number(values.item())
    kept, size = KEPT[options.profile], values.shape[0]
    is_shortened = kept is not None and size > kept
    head = kept // 2 if kept is not None and is_shortened else size
    shown = [*range(head), *(range(size - head, size) if is_shortened else ())]
    items = [_format_nested(values[i], depth + 1, number) for i in shown]
    if is_shortened:
        items.insert(head, " ..." if values.dim() == 1 else "...")
    if values.dim() == 1:
        return "[" + ", ".join(items) + "]"
    between = ",\n" + "\n" * (values.dim() > 2) + " " * (INDENT + depth + 1)
    return "[" + between.join(items) + "]"
