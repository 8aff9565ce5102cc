"""Checks that the rows of a report name only what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Rows = Iterable[Sequence[Any]]


def validate_graph_integrity(
    operations_batch: Rows,
    tensors_batch: Rows,
    input_tensors_batch: Rows,
    output_tensors_batch: Rows,
    operation_arguments_batch: Rows,
    device_tensors_batch: Rows,
    buffers_batch: Rows,
    devices: Iterable[Mapping[str, Any]] | None,
) -> list[str]:
    """A sentence for each row that names an operation, tensor or device that no table has."""
    operations = {row[0] for row in operations_batch}
    tensors = {int(row[0]) for row in tensors_batch}
    known_devices = {device.get("device_id", 0) for device in devices or ()}
    found: list[str] = []
    for table, rows in (("input_tensors", input_tensors_batch), ("output_tensors", output_tensors_batch)):
        for operation, _, tensor, *_ in rows:
            if int(tensor) not in tensors:
                found.append(
                    f"{table} references tensor_id={tensor} (operation_id={operation}), which tensors does not have"
                )
            if operation not in operations:
                found.append(f"{table} references operation_id={operation}, which operations does not have")
    strangers = sorted({row[0] for row in operation_arguments_batch} - operations)[:1]  # one says enough
    found += [f"operation_arguments references operation_id={row}, which operations does not have" for row in strangers]
    for tensor, *_ in device_tensors_batch:
        if int(tensor) not in tensors:
            found.append(f"device_tensors references tensor_id={tensor}, which tensors does not have")
    for device in sorted({row[1] for row in buffers_batch} - known_devices) if known_devices else ():
        found.append(f"buffers references device_id={device}, which devices does not have: {sorted(known_devices)}")
    return found
