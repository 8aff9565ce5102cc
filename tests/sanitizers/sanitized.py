"""Makes this process load kernels that were compiled with sanitizers; the first argument names them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ttmesh.chip.formats.kernels import loader, threads

SANITIZERS = sys.argv[1]
BY_OPENMP = "thread" not in SANITIZERS  # TSan does not see how OpenMP's threads wait for each other


def use_threads(number: int) -> None:
    """So many for any amount of work: torch's, or the kernels' own while torch has one."""
    threads.SPLIT_BYTES = 0
    threads.team = threads.Team()
    torch.set_num_threads(number if BY_OPENMP else 1)
    if not BY_OPENMP:
        threads.count_threads = lambda size_bytes: number
        threads.parallel = lambda: None


def use_sanitized_kernels() -> None:
    """Every kernel from now on, with 8 threads."""
    kept = tuple(flag for flag in loader.FLAGS if not flag.startswith("-O"))
    checks = (f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    loader.FLAGS = (*kept, "-O1", "-g", *checks)
    loader.COMPILE_TIMEOUT_S = 1200.0  # the sanitizers' code takes minutes beside other work
    use_threads(8)
    for name in sorted(path.stem for path in Path(loader.__file__).parent.glob("*.c")):
        assert loader.library(name) is not None, f"{name} does not compile with {SANITIZERS}"
