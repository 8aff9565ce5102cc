"""The links of a system, shared by its meshes: routes over them and the bytes they carried."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ttmesh.base.records import shorten_system_name
from ttmesh.chip.system import System
from ttmesh.fabric.link_counters import LinkCounters
from ttmesh.fabric.routes import Routes

if TYPE_CHECKING:
    from rich.console import Group


class SystemTraffic:
    """Routes and counters; one object for an opened mesh and all its submeshes."""

    def __init__(self, system: System, own: frozenset[int] | None = None) -> None:
        self._system = system
        self.routes = Routes(system.grid, system.links)
        name = shorten_system_name(system.name)
        self.counters = LinkCounters(self.routes.fabric, own, system=name, original_ids=system.original_ids)

    def report(self) -> Group:
        """The load of every link, on a drawing of the system's grid and as a table."""
        link_report = importlib.import_module("ttmesh.fabric.link_report")  # takes 20 ms, so only when it is wanted
        report: Group = link_report.fabric_report(
            self._system.grid, self._system.links, self.counters.loads(), title=self._system.name
        )
        return report
