"""Which operation made a tensor, which used it last, which freed it, and where these are in the program."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

FILE_AND_LINE = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)
DEALLOCATIONS = ("ttnn::deallocate", "ttnn.deallocate", "Tensor::deallocate")  # they free, which is no use
Row = Sequence[Any]


def innermost_stack_frame(trace_text: str | None) -> tuple[str | None, int | None]:
    """File and line of the first frame of a stack trace: captures write the innermost first."""
    found = FILE_AND_LINE.search(trace_text or "")
    return (found[1], int(found[2])) if found else (None, None)


def compute_tensor_lifetime_records(
    operations_batch: Iterable[Row],
    input_tensors_batch: Iterable[Row],
    output_tensors_batch: Iterable[Row],
    stack_traces_batch: Iterable[Row],
    tensor_ids: Collection[Any],
) -> list[dict[str, Any]]:
    """A record for each tensor from rows of the tables; what no operation did is None."""
    frees = {row[0] for row in operations_batch if row[1] in DEALLOCATIONS}
    frames = {row[0]: innermost_stack_frame(row[1]) for row in stack_traces_batch}
    made: dict[int, int] = {}
    used: dict[int, int] = {}
    freed: dict[int, int] = {}
    for operation, _, tensor, *_ in output_tensors_batch:
        made[int(tensor)] = min(operation, made.get(int(tensor), operation))
    for operation, _, tensor, *_ in input_tensors_batch:
        if operation in frees:
            freed[int(tensor)] = min(operation, freed.get(int(tensor), operation))
        else:
            used[int(tensor)] = max(operation, used.get(int(tensor), operation))
    records = []
    for tensor in map(int, sorted(tensor_ids)):
        producer, last_use = made.get(tensor), used.get(tensor)
        producer_file, producer_line = frames.get(producer, (None, None))
        last_file, last_line = frames.get(last_use, (None, None))
        records.append(
            {
                "tensor_id": tensor,
                "producer_operation_id": producer,
                "last_use_operation_id": last_use,
                "deallocate_operation_id": freed.get(tensor),
                "producer_source_file": producer_file,
                "producer_source_line": producer_line,
                "last_use_source_file": last_file,
                "last_use_source_line": last_line,
            }
        )
    return records
