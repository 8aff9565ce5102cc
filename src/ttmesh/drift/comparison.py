"""TT-NN's comparison mode: every result against float32, alone ("locally") and along the whole run ("globally")."""

from __future__ import annotations

import logging

from ttmesh.base import ttnn_config
from ttmesh.drift.recorder import DriftRecorder, Record

log = logging.getLogger(__name__)
OPTION = "enable_comparison_mode"


class Comparison(DriftRecorder):
    """Reports results whose PCC is below `ttnn.CONFIG.comparison_mode_pcc`, or raises where the config says so."""

    def __init__(self) -> None:
        super().__init__(try_settings=False)

    def add(self, record: Record) -> None:
        """Compare one result; records are not kept."""
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
