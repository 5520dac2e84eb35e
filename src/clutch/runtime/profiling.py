"""What a run's node is doing, once a second: processors, memory, disks, network, GPUs, as metrics of ``system/...``.

One thread in one process of a node (local rank 0). A step is a second of the run. Rates are over the second before, so
the first sample has none. GPUs are asked through NVML where it is installed and answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

EVERY_S = 1.0
JOIN_S = 5.0
Report = Callable[[str, int, dict[str, float | int]], None]


class Profiler:
    """``on`` and ``off`` as often as one likes."""

    def __init__(self, report: Report, *, every_s: float = EVERY_S) -> None:
        self._report = report
        self._every_s = every_s
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def on(self) -> None:
        if self._thread is None:
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="clutch-profiling", daemon=True)
            self._thread.start()

    def off(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join(JOIN_S)
            self._thread = None

    @property
    def is_on(self) -> bool:
        return self._thread is not None

    def _run(self, stop: threading.Event) -> None:
        machine = Machine()
        gpus = Gpus()
        try:
            while True:
                step = int(time.monotonic() - self._begun)
                for group, values in (*machine.sample().items(), *gpus.sample().items()):
                    if values:
                        self._report(f"system/{group}", step, values)
                if stop.wait(self._every_s):
                    return
        finally:
            gpus.close()


class Machine:
    """Processors, memory, disks and network of this machine."""

    def __init__(self) -> None:
        import psutil  # type: ignore[import-untyped]

        self._psutil: Any = psutil
        self._psutil.cpu_percent()  # the first answer is about nothing
        self._before: dict[str, int] = {}
        self._at = 0.0

    def sample(self) -> dict[str, dict[str, float | int]]:
        psutil = self._psutil
        memory = psutil.virtual_memory()
        found: dict[str, dict[str, float | int]] = {
            "cpu": {"percent": float(psutil.cpu_percent())},
            "memory": {
                "used_bytes": int(memory.total - memory.available),
                "free_bytes": int(memory.available),
                "percent": float(memory.percent),
            },
        }
        counted: dict[str, dict[str, int]] = {"disk": {}, "network": {}}
        with suppress(OSError, RuntimeError):
            disk = psutil.disk_io_counters()
            if disk is not None:
                counted["disk"] = {
                    "read_bytes": disk.read_bytes,
                    "written_bytes": disk.write_bytes,
                    "operations": disk.read_count + disk.write_count,
                }
        with suppress(OSError, RuntimeError):
            network = psutil.net_io_counters()
            if network is not None:
                counted["network"] = {"received_bytes": network.bytes_recv, "sent_bytes": network.bytes_sent}
        now = time.monotonic()
        for group, counters in counted.items():
            found[group] = self._rates(group, counters, now - self._at)
        with suppress(OSError):
            found["disk"]["used_percent"] = float(psutil.disk_usage(".").percent)
        self._at = now
        return found

    def _rates(self, group: str, counters: dict[str, int], passed_s: float) -> dict[str, float | int]:
        rates: dict[str, float | int] = {}
        for name, count in counters.items():
            before = self._before.get(f"{group}/{name}")
            if before is not None and passed_s > 0:
                rates[f"{name}_per_s"] = max(0.0, (count - before) / passed_s)
            self._before[f"{group}/{name}"] = count
        return rates


class Gpus:
    """The GPUs this process may see, by their numbers on the node. None where NVML is not installed or fails."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml  # type: ignore[import-not-found]

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except Exception:  # no package, no driver, no permission: NVML has an error of its own for each
            self._handles = []

    def sample(self) -> dict[str, dict[str, float | int]]:
        values: dict[str, float | int] = {}
        for number, handle in enumerate(self._handles):
            try:
                use = self._nvml.nvmlDeviceGetUtilizationRates(handle)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except Exception:  # a device that has fallen off; the others are still of interest
                continue
            values[f"{number}/percent"] = float(use.gpu)
            values[f"{number}/used_bytes"] = int(memory.used)
            values[f"{number}/free_bytes"] = int(memory.free)
        return {"gpu": values}

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(Exception):
                self._nvml.nvmlShutdown()
