"""What is counted and measured of a master, in Prometheus' words. Few labels: never a task, a member or a user."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Traffic:
    """HTTP requests, by operation and kind of status."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        labels = ["operation", "status"]
        self._requests = Counter("clutch_http_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = Histogram(
            "clutch_http_request_seconds", "Time to answer, streams aside.", buckets=SECONDS, registry=self.registry
        )

    def count(self, operation: str, status: int, took_s: float) -> None:
        """One more. ``took_s`` 0: its time says nothing (a WebSocket)."""
        self._requests.labels(operation, f"{status // 100}xx").inc()
        if took_s:
            self._seconds.observe(took_s)
