"""Finds the Triton kernels; without a GPU, Triton or a compiler for its launchers torch computes instead."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from types import ModuleType

import torch


@functools.cache
def find_gpu_kernels(name: str) -> ModuleType | None:
    """The module of Triton kernels with this name, or None where torch's own functions are used."""
    if not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return None
    module = importlib.import_module(f"ttmesh.chip.formats.kernels.gpu.{name}")
    try:
        module.warm_up()
    except Exception as error:  # no compiler, no cache folder, an unknown GPU: torch gives the same bits, more slowly
        warnings.warn(
            f"Triton kernels of {name} cannot be used, torch computes instead: {error}", RuntimeWarning, stacklevel=2
        )
        return None
    return module
