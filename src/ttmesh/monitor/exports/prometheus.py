"""Metrics as Prometheus scrapes them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ttmesh.monitor.view import View

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEVICE = ["host", "system", "device", "coordinator"]


class ViewCollector(Collector):
    """One view as metric families."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> list[Metric]:
        """Everything that is in the view."""
        return [*self._devices(), *self._processes(), *self._server()]

    def _devices(self) -> list[Metric]:
        used = GaugeMetricFamily("ttmesh_memory_used_bytes", "Held now", labels=[*DEVICE, "class"])
        peak = GaugeMetricFamily("ttmesh_memory_peak_bytes", "Most ever held", labels=[*DEVICE, "class"])
        buffers = GaugeMetricFamily("ttmesh_buffers", "Buffers held now", labels=[*DEVICE, "class"])
        capacity = GaugeMetricFamily("ttmesh_pool_capacity_bytes", "Size of a pool", labels=[*DEVICE, "pool"])
        reached = GaugeMetricFamily("ttmesh_pool_peak_bytes", "Most ever held of a pool", labels=[*DEVICE, "pool"])
        largest = GaugeMetricFamily(
            "ttmesh_pool_largest_free_bytes", "Largest free block over all banks", labels=[*DEVICE, "pool"]
        )
        scattered = GaugeMetricFamily(
            "ttmesh_pool_fragmentation_ratio", "1 - largest free / free", labels=[*DEVICE, "pool"]
        )
        for device in self._view.devices:
            name = [device.host, device.system, str(device.physical_id), str(int(device.is_coordinator))]
            for bar in device.bars:
                capacity.add_metric([*name, bar.pool], bar.capacity_bytes)
                reached.add_metric([*name, bar.pool], bar.peak_bytes)
                largest.add_metric([*name, bar.pool], bar.largest_free_bytes)
                scattered.add_metric([*name, bar.pool], bar.fragmentation)
                for segment in bar.segments:
                    used.add_metric([*name, segment.memory_class], segment.used_bytes)
                    peak.add_metric([*name, segment.memory_class], segment.peak_bytes)
                    buffers.add_metric([*name, segment.memory_class], segment.buffers)
        return [used, peak, buffers, capacity, reached, largest, scattered]

    def _processes(self) -> list[Metric]:
        labels = ["host", "pid", "name"]
        used = GaugeMetricFamily(
            "ttmesh_process_used_bytes", "Held now by a process over all its devices", labels=[*labels, "class"]
        )
        missed = CounterMetricFamily(
            "ttmesh_process_missed_records", "Records of a process that never reached the server", labels=labels
        )
        for process in self._view.processes:
            name = [process.host, str(process.pid), process.name]
            missed.add_metric(name, process.missed)
            for kind, size in process.used_bytes.items():
                used.add_metric([*name, kind], size)
        return [used, missed]

    def _server(self) -> list[Metric]:
        return [
            CounterMetricFamily("ttmesh_records", "Records that the server took", value=self._view.records),
            GaugeMetricFamily("ttmesh_server_uptime_seconds", "Since the server began", value=self._view.uptime_s),
        ]


def to_prometheus(view: View) -> str:
    """The text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ViewCollector(view))
    return generate_latest(registry).decode()
