"""Low-level programs and reshapes on meshes that ranks divide."""

from __future__ import annotations

import pytest
from rank_launches import HERE, launched


@pytest.mark.parametrize(("engine", "ranks"), [("mpi", 2), ("torchdist", 4)])
def test_programs_and_reshapes_work_across_ranks(engine: str, ranks: int) -> None:
    done = launched(engine, ranks, str(HERE / "programs_and_shapes.py"), TTMESH_TIMEOUT_S="100")

    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"[{rank}] rank {rank} is content" in done.stdout for rank in range(ranks))
