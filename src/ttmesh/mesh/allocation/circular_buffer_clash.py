"""The rule that circular buffers and L1 buffers must not overlap: the former grow up from the bottom of L1, the latter down.

The texts are TT-Metal's (tt-metal e4f9f0b, tt_metal/impl/program/program.cpp). tensor/calls/circular_buffer_checks.py
applies the rule to operations, programs/l1_layout.py to programs that users write.
"""

from __future__ import annotations

from ttmesh.base.errors import OutOfMemoryError


def check_l1_size(cores: str, end: int, l1_bytes: int, *, expected: str, fix: str, label: str = "") -> None:
    """Refuse circular buffers that end beyond L1."""
    if end > l1_bytes:
        raise OutOfMemoryError(
            f"Statically allocated circular buffers on core range {cores} grow to {end} B which is beyond max L1 size of "
            f"{l1_bytes} B",
            expected=expected,
            fix=fix,
            label=label,
        )


def make_clash_error(
    program: str | int, cores: str, lowest: int, end: int, *, expected: str, fix: str
) -> OutOfMemoryError:
    """The error for circular buffers that end above the lowest L1 buffer."""
    return OutOfMemoryError(
        f"Statically allocated circular buffers in program {program} clash with L1 buffers on core range {cores}. L1 buffer "
        f"allocated at {lowest} and static circular buffer region ends at {end}",
        expected=expected,
        fix=fix,
        label=str(program),
    )
