"""TT-NN's comparison mode: every result against float32, alone ("locally") and along the whole run ("globally")."""

from __future__ import annotations

import logging
from typing import Any

from ttmesh.base import ttnn_config
from ttmesh.drift.recorder import DriftRecorder, Record
from ttmesh.ops.graph import comparison_records
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.calls.launch_op import tensors_in
from ttmesh.tensor.spec.id_counters import tensor_ids
from ttmesh.tensor.tensor import Tensor

log = logging.getLogger(__name__)
OPTION = "enable_comparison_mode"


class Comparison(DriftRecorder):
    """Reports results whose PCC is below `ttnn.CONFIG.comparison_mode_pcc`, or raises where the config says so."""

    def __init__(self) -> None:
        super().__init__(try_settings=False)
        self._latest: dict[int, Record] = {}  # buffer -> what was found about it while an operation runs

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Keep what was found about an operation's results for graph reports (ttnn.graph)."""
        for tensor in tensors_in({"result": result}):
            if tensor.is_allocated() and tensor.device() is not None:
                record = self._latest.get(tensor.buffer.cell.buffer_id)
                if record is not None:
                    _keep(tensor, record)
        self._latest.clear()

    def add(self, record: Record) -> None:
        """Compare one result."""
        self._latest[record.buffer_id] = record
        config = ttnn_config.CONFIG
        for level, distance in (("locally", record.own), ("globally", record.total)):
            if distance.pcc >= config.comparison_mode_pcc:
                continue
            message = (
                f"{record.name}: Comparing output tensor {record.output} against CPU {level} failed: "
                f"pcc is {distance.pcc} but should be >={config.comparison_mode_pcc}"
            )
            if config.comparison_mode_should_raise_exception:
                raise RuntimeError(message)
            log.error(message)


def _keep(tensor: Tensor, record: Record) -> None:
    """Note both comparisons of a tensor; a golden has no tensor here, so it gets an id and a description alone."""
    wanted = ttnn_config.CONFIG.comparison_mode_pcc
    tables, goldens = [], []
    for distance in (record.own, record.total):
        golden = tensor_ids.fetch_and_increment()
        found = {"matches": distance.pcc >= wanted, "desired_pcc": wanted, "actual_pcc": distance.pcc}
        tables.append([{"tensor_id": tensor.tensor_id, "golden_tensor_id": golden, **found}])
        shape = f"torch.Size({list(record.shape)})"
        host = {"shape": shape, "dtype": "torch.float32", "layout": "torch.strided", "storage_type": "HOST"}
        goldens.append({"tensor_id": golden, **host})
    config = tensor.memory_config()
    described = {
        "tensor_id": tensor.tensor_id,
        "shape": str(tensor.shape),
        "dtype": str(tensor.dtype),
        "layout": str(tensor.layout),
        "memory_config": str(config),
        "device_id": tensor._mesh.id() if tensor._mesh is not None else None,
        "address": tensor.buffer_address(),
        "buffer_type": config.buffer_type.value,
        "storage_type": "DEVICE",
    }
    comparison_records.record_tensor_comparison_data(
        local_tensor_comparison_records=tables[0],
        global_tensor_comparison_records=tables[1],
        tensors=[described, *goldens],
    )


_running: list[Comparison] = []


def follow_config() -> None:
    """Compare while `ttnn.CONFIG.enable_comparison_mode` is set, from now on."""
    ttnn_config.on_change(OPTION, _switch)
    _switch(ttnn_config.CONFIG.enable_comparison_mode)


def _switch(wanted: object) -> None:
    if wanted and not _running:
        _running.append(Comparison())
        _running[0].__enter__()
    elif not wanted and _running:
        _running.pop().__exit__()
