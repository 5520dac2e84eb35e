"""What ``clutch.init()`` costs a script: little time, few modules; and what a report costs its loop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = (
    "asyncio", "http", "email", "ssl", "urllib", "socket", "json", "pathlib", "tempfile", "pydantic", "litestar",
    "uvicorn", "httpx", "sqlalchemy", "numpy", "torch", "psutil", "zmq", "typing_extensions",
)  # fmt: skip


def clean(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_")}, **more}


def test_a_script_by_itself_pulls_in_nothing_heavy(tmp_path: Path) -> None:
    text = f"""
import sys
before = set(sys.modules)
import clutch
run = clutch.init(hparams={{"lr": 1}})
run.hparams.lr, run.should_stop()
print(sorted(set({HEAVY!r}) & {{name.split(".")[0] for name in set(sys.modules) - before}}))
import typing_extensions
assert typing_extensions is not None
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{text}"],
        env=clean(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_init_costs_a_few_times_a_bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 40 ms where a bare Python takes 10: said as a ratio of processor time, because machines and their load
    differ. The best of several, taken in turns."""
    monkeypatch.chdir(tmp_path)

    def once(text: str) -> float:
        child = os.posix_spawn(sys.executable, [sys.executable, "-c", text], clean())
        _, status, used = os.wait4(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        return used.ru_utime + used.ru_stime

    pairs = [(once("pass"), once("import clutch; clutch.init()")) for _ in range(12)]
    bare, ours = (min(times) for times in zip(*pairs, strict=True))
    assert ours - bare < 4 * bare, f"bare {bare * 1000:.1f} ms, with clutch.init() {ours * 1000:.1f} ms"


def test_a_report_costs_its_loop_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of a report against that of a bare append: see ``benchmarks/reporting.py`` for the figures."""
    import clutch

    for name in [name for name in os.environ if name.startswith("CLUTCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def median(call: object) -> float:
        times = []
        for step in range(5_000):
            began = time.perf_counter()
            call(step)  # type: ignore[operator]
            times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2]

    kept: list[object] = []
    with clutch.init() as run:
        bare = median(lambda step: kept.append({"step": step, "loss": 1.0, "accuracy": 0.5}))
        ours = median(lambda step: run.report(step, loss=1.0, accuracy=0.5))
    assert ours < 50e-6 or ours < 100 * bare, f"{ours * 1e6:.1f} us against {bare * 1e6:.2f}"
