"""Pages of buffers, put together per bank and core: the rows of `buffer_chunks`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# A page: device_id, address, core_y, core_x, bank_id, page_index, page_address, page_size, buffer_type.
Page = tuple[int, ...]
PAGE_KEYS = ("address", "core_y", "core_x", "bank_id", "page_index", "page_address", "page_size", "buffer_type")
Json = Mapping[str, Any]


def aggregate_pages_to_chunks(op_id: int, pages: Iterable[Page], rank: int = 0) -> list[tuple[int, ...]]:
    """One row for the pages of a buffer in one bank of one core: from the first byte to the last."""
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for device, address, core_y, core_x, bank, _, page_address, page_size, buffer_type in pages:
        key = (device, address, bank, core_x, core_y, buffer_type)
        groups.setdefault(key, []).append((page_address, page_size))
    rows: list[tuple[int, ...]] = []
    for (device, address, bank, core_x, core_y, buffer_type), spans in groups.items():
        first, last = min(start for start, _ in spans), max(start + size for start, size in spans)
        largest = max(size for _, size in spans)
        where = (op_id, device, address, bank, core_x, core_y)
        rows.append((*where, first, last - first, largest, len(spans), buffer_type, rank))
    return rows


def list_chunks(
    report: Json, operation_ids: Mapping[int, int], first_operation: int, rank: int, device_of: Callable[[int], int]
) -> list[tuple[int, ...]]:
    """The chunks of every operation; without live buffers per operation, those of the report's own list of pages.

    Args:
        operation_ids: counter of an operation's first node -> its id
        first_operation: the operation that gets the report's own list
        device_of: device id of the report -> that of the database
    """

    def read_page(page: Json) -> Page:
        return (device_of(page.get("device_id", 0)), *(page.get(key, 0) for key in PAGE_KEYS))

    by_address, by_operation = report.get("buffer_pages_by_address"), report.get("per_operation_buffers")
    if not (by_address and by_operation):
        pages = [read_page(page) for page in report.get("buffer_pages") or ()]
        return aggregate_pages_to_chunks(first_operation, pages, rank)
    history = {int(address): _Snapshots(taken, read_page) for address, taken in by_address.items()}
    ends = _find_ends(report.get("graph", ()))
    pages_of: dict[int, list[Page]] = {}
    for counter, buffers in by_operation.items():
        operation = operation_ids.get(int(counter))
        if operation is None:
            continue
        at = ends.get(int(counter), int(counter))  # buffers are allocated while the operation runs
        known = (history[b.get("address", 0)] for b in buffers if b.get("address", 0) in history)
        pages_of.setdefault(operation, []).extend(page for taken in known for page in taken.at(at))
    return [row for operation, pages in pages_of.items() for row in aggregate_pages_to_chunks(operation, pages, rank)]


class _Snapshots:
    """The pages at an address, each time that a buffer was allocated there."""

    def __init__(self, taken: Sequence[Json], read_page: Callable[[Json], Page]) -> None:
        if not (taken and "alloc_counter" in taken[0]):
            taken = [{"alloc_counter": 0, "pages": taken}]
        taken = sorted(taken, key=lambda one: int(one["alloc_counter"]))
        self._counters = [int(one["alloc_counter"]) for one in taken]
        self._pages = [[read_page(page) for page in one["pages"]] for one in taken]

    def at(self, counter: int) -> list[Page]:
        """The pages of the last allocation until then, else of the first."""
        return self._pages[max(bisect_right(self._counters, counter) - 1, 0)]


def _find_ends(graph: Iterable[Json]) -> dict[int, int]:
    """Counter of a function's first node -> of its last."""
    open_functions: list[int] = []
    ends: dict[int, int] = {}
    for node in graph:
        if node.get("node_type") == "function_start":
            open_functions.append(node.get("counter", 0))
        elif node.get("node_type") == "function_end" and open_functions:
            ends[open_functions.pop()] = node.get("counter", 0)
    return ends
