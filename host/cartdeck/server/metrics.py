"""Owns the figures of a server for Prometheus: counted as requests go by, or read from the engine when asked for.

It does not know requests' meaning. Names begin with `cartdeck_`; seconds and bytes are base units.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cartdeck.engine import Engine

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SPEED: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Metrics:
    """The figures of one server."""

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "cartdeck_http_requests", "Requests by path and status", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "cartdeck_http_request_seconds", "Until the last byte", ["path"], registry=registry, buckets=_LATENCY_S
        )
        self.open = Gauge("cartdeck_http_open_requests", "Requests that are open now", registry=registry)
        self.received = Counter("cartdeck_http_received_bytes", "Of requests' bodies", registry=registry)
        self.sent = Counter("cartdeck_http_sent_bytes", "Of responses' bodies", registry=registry)
        self.first_token = Histogram(
            "cartdeck_first_token_seconds",
            "From a request to the first piece of its output",
            ["model"],
            registry=registry,
            buckets=_LATENCY_S,
        )
        self.speed = Histogram(
            "cartdeck_tokens_per_second",
            "Of one request, behind its first token",
            ["model"],
            registry=registry,
            buckets=_SPEED,
        )
        self.verdicts = Counter(
            "cartdeck_guard_verdicts", "What guards said", ["guard", "when", "verdict"], registry=registry
        )
        self.tokens = Counter("cartdeck_tokens", "Tokens read and made", ["model", "kind"], registry=registry)
        registry.register(_EngineFigures(engine))

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _EngineFigures(Collector):
    """What the engine counts by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return []  # so that registering asks nothing of an engine that is not open

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        phases = GaugeMetricFamily("cartdeck_requests", "Open calls by phase", labels=["cartridge", "phase"])
        by_phase: dict[tuple[str, str], int] = {}
        sums: dict[str, dict[str, float]] = {}
        for session in stats.sessions:
            name = session.key.cartridge
            for phase, count in session.requests.items():
                by_phase[name, phase] = by_phase.get((name, phase), 0) + count
            of_cartridge = sums.setdefault(name, {})
            for figure, value in (
                ("processes", int(session.pid is not None)),
                ("rss", session.rss_bytes or 0),
                ("starts", session.starts),
                ("restarts", session.restarts),
                ("calls", session.traffic.opened_requests),
                ("read", session.traffic.read_bytes),
                ("written", session.traffic.written_bytes),
            ):
                of_cartridge[figure] = of_cartridge.get(figure, 0) + value
        for (name, phase), count in by_phase.items():
            phases.add_metric([name, phase], count)
        yield phases
        queue = sum(count for (_, phase), count in by_phase.items() if phase in ("queued", "starting"))
        yield GaugeMetricFamily("cartdeck_queue", "Calls that wait for a process", value=queue)
        yield from _by_cartridge(sums)
        memory = stats.memory
        yield GaugeMetricFamily("cartdeck_memory_budget_bytes", "0 is no limit", value=memory.budget_bytes)
        yield GaugeMetricFamily("cartdeck_memory_used_bytes", "Held of the budget", value=memory.used_bytes)
        yield GaugeMetricFamily("cartdeck_memory_waiting", "Loads that wait for memory", value=memory.waiting)


def _by_cartridge(sums: dict[str, dict[str, float]]) -> Iterable[Metric]:
    gauges = {"processes": "Processes that run", "rss": "Resident memory of its processes"}
    counters = {
        "starts": "Processes started, each of which loads its model",
        "restarts": "Those that replaced one that had ended",
        "calls": "Calls sent to its processes",
        "read": "Read from its processes",
        "written": "Written to its processes",
    }
    units = {"rss": "cartdeck_rss_bytes", "read": "cartdeck_wire_read_bytes", "written": "cartdeck_wire_written_bytes"}
    for figure, text in gauges.items():
        gauge = GaugeMetricFamily(units.get(figure, f"cartdeck_{figure}"), text, labels=["cartridge"])
        for name, values in sums.items():
            gauge.add_metric([name], values[figure])
        yield gauge
    for figure, text in counters.items():
        counter = CounterMetricFamily(units.get(figure, f"cartdeck_{figure}"), text, labels=["cartridge"])
        for name, values in sums.items():
            counter.add_metric([name], values[figure])
        yield counter
