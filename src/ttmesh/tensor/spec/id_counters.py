"""TT-NN's counters of ids. Tensors take theirs when they are asked for it; operations take none here, so the counters of
operations move only when a program moves them.
"""

from __future__ import annotations

import threading


class IdCounter:
    """The next id; several threads may take one."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._lock = threading.Lock()

    def get(self) -> int:
        """The id that is taken next."""
        return self._next

    def set(self, id: int) -> None:
        """Go on from this id."""
        if isinstance(id, bool) or not isinstance(id, int) or id < 0:
            raise TypeError(f"an id is a number from 0, not {id!r}")
        with self._lock:
            self._next = id

    def fetch_and_increment(self) -> int:
        """Take the next id."""
        with self._lock:
            taken = self._next
            self._next += 1
        return taken


tensor_ids = IdCounter(1)
python_operation_ids = IdCounter(0)
device_operation_ids = IdCounter(1)

get_tensor_id, set_tensor_id = tensor_ids.get, tensor_ids.set
fetch_and_increment_tensor_id = tensor_ids.fetch_and_increment
get_python_operation_id, set_python_operation_id = python_operation_ids.get, python_operation_ids.set
fetch_and_increment_python_operation_id = python_operation_ids.fetch_and_increment
get_device_operation_id, set_device_operation_id = device_operation_ids.get, device_operation_ids.set
fetch_and_increment_device_operation_id = device_operation_ids.fetch_and_increment
