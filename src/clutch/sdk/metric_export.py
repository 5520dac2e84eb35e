"""Metrics as files of other tools: CSV, Parquet, TensorBoard. Any number of points, a page of them in memory at a time.

``pages`` asks the API for every point; each writer takes series as they come, so a chart's series can be written too.
A point that stands for several is written as its value.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from clutch.sdk.tensorboard_events import EventFile
from clutch.wire.api import Page
from clutch.wire.errors import BadRequest
from clutch.wire.ids import MemberId
from clutch.wire.metrics import Series, Value, heard, spoken

COLUMNS = ("task", "role", "rank", "epoch", "group", "name", "step", "at", "value", "superseded")
FORMATS = ("csv", "parquet", "tensorboard")
_PARQUET_ROWS = 100_000
"""So many rows are one row group of a Parquet file."""

Ask = Callable[[str], Page[Series]]
"""The exact page behind a cursor; the first for an empty one."""


def pages(ask: Ask) -> Iterator[Series]:
    """Every series of every page, in pieces, as they come."""
    after = ""
    while True:
        page = ask(after)
        yield from page.items
        if not page.next or page.next == after:
            return
        after = page.next


def export(series: Iterable[Series], target: Path | str, form: str = "") -> int:
    """Write series to a file (CSV, Parquet) or a folder (TensorBoard); how many points were written.

    The form is told by the file's ending unless it is given.
    """
    path = Path(target)
    form = form or {".csv": "csv", ".parquet": "parquet"}.get(path.suffix.lower(), "tensorboard")
    writers = {"csv": write_csv, "parquet": write_parquet, "tensorboard": write_tensorboard}
    if form not in writers:
        raise BadRequest(
            f"{form!r} is no form of export", object=str(path), next_step=f"Name one of {', '.join(FORMATS)}."
        )
    return writers[form](series, path)


def write_csv(series: Iterable[Series], path: Path) -> int:
    """A row for each point. NaN and the infinities are written as in JSON; floats so that they read back the same."""
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for one in series:
            head = (one.member.task, one.member.role, one.member.rank, one.epoch, one.group, one.name)
            writer.writerows(
                (*head, point.step, repr(point.at), _text(point.value), str(point.superseded).lower())
                for point in one.points
            )
            count += len(one.points)
    return count


def _text(value: Value) -> str:
    said = spoken(heard(value))
    return said if isinstance(said, str) else repr(said)


def write_parquet(series: Iterable[Series], path: Path) -> int:
    """A row for each point, with the value in ``value`` (a double), ``integer`` (exact) or ``text``."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadRequest(
            "pyarrow is not installed", object=str(path), next_step="Install clutch[export], or export as CSV."
        ) from None
    schema = pyarrow.schema(
        [
            ("task", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
            ("role", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
            ("rank", pyarrow.int32()),
            ("epoch", pyarrow.int32()),
            ("group", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
            ("name", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
            ("step", pyarrow.int64()),
            ("at", pyarrow.float64()),
            ("value", pyarrow.float64()),
            ("integer", pyarrow.int64()),
            ("text", pyarrow.string()),
            ("superseded", pyarrow.bool_()),
        ]
    )
    count, held = 0, _Rows()
    with parquet.ParquetWriter(path, schema) as writer:
        for one in series:
            held.add(one)
            count += len(one.points)
            if held.count >= _PARQUET_ROWS:
                writer.write_table(pyarrow.table(held.columns, schema=schema))
                held = _Rows()
        if held.count or not count:
            writer.write_table(pyarrow.table(held.columns, schema=schema))
    return count


class _Rows:
    """Columns of a Parquet file until they are written."""

    def __init__(self) -> None:
        names = (
            "task",
            "role",
            "rank",
            "epoch",
            "group",
            "name",
            "step",
            "at",
            "value",
            "integer",
            "text",
            "superseded",
        )
        self.columns: dict[str, list[Any]] = {name: [] for name in names}
        self.count = 0

    def add(self, series: Series) -> None:
        size, columns = len(series.points), self.columns
        member = series.member
        for name, value in (
            ("task", member.task), ("role", member.role), ("rank", member.rank), ("epoch", series.epoch),
            ("group", series.group), ("name", series.name),
        ):  # fmt: skip
            columns[name] += [value] * size
        values = [heard(point.value) for point in series.points]
        columns["step"] += [point.step for point in series.points]
        columns["at"] += [point.at for point in series.points]
        columns["value"] += [None if isinstance(value, str) else float(value) for value in values]
        columns["integer"] += [value if isinstance(value, int) else None for value in values]
        columns["text"] += [value if isinstance(value, str) else None for value in values]
        columns["superseded"] += [point.superseded for point in series.points]
        self.count += size


def write_tensorboard(series: Iterable[Series], folder: Path) -> int:
    """One run for each member, called after task, role and rank, with scalars ``group/name``.

    They have the precision of a 32-bit float; texts are left out. Ask without superseded points, or a curve goes back
    where a task restarted.
    """
    files: dict[MemberId, EventFile] = {}
    count = 0
    try:
        for one in series:
            file = files.get(one.member)
            if file is None:
                run = folder / "-".join((*map(_plain, (one.member.task, one.member.role)), str(one.member.rank)))
                run.mkdir(parents=True, exist_ok=True)
                first = one.points[0].at if one.points else time.time()
                file = files[one.member] = EventFile(run, first)
            tag = f"{one.group}/{one.name}"
            for point in one.points:
                value = heard(point.value)
                if not isinstance(value, str):
                    file.scalar(tag, point.step, point.at, _single(value))
                    count += 1
    finally:
        for file in files.values():
            file.close()
    return count


def _plain(word: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in word).strip(".") or "_"


def _single(value: float | int) -> float:
    """What fits a 32-bit float; beyond its range, an infinity."""
    number = float(value)
    if math.isfinite(number) and abs(number) > 3.4028235677973362e38:
        return math.copysign(math.inf, number)
    return number
