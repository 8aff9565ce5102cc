"""Repeated launches of a compiled Triton kernel: a plain call looks at every argument again, 20 µs of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def bind_launch(compiled: Any, grid: tuple[int, int, int], constants: tuple[object, ...]) -> Callable[..., None]:
    """A function of the kernel's leading pointers (as numbers) that launches it on the current stream.

    Args:
        compiled: what a plain call of the kernel returned; its pointers were aligned as those of later calls are.
        constants: the arguments behind the pointers.
    """
    launcher = compiled.run
    launch = getattr(launcher, "launch", None)
    if launch is None or launcher.global_scratch_size or launcher.profile_scratch_size:  # another Triton
        runner: Callable[..., None] = compiled[grid]
        return lambda *pointers: runner(*pointers, *constants)
    forms = launcher.launch_cooperative_grid, launcher.launch_pdl, None, None
    tail = *forms, compiled.packed_metadata, None, None, None
    function, current_stream, device = (
        compiled.function,
        torch._C._cuda_getCurrentRawStream,
        torch.cuda.current_device(),
    )

    def call(*pointers: int) -> None:
        launch(*grid, current_stream(device), function, *tail, *pointers, *constants)

    return call
