"""How experiments, trials and checkpoints look: rows, one experiment, its curves. Values in, text out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clutch.cli.curves import Curve, are_curves, bar, number, plot
from clutch.cli.lists import Column, ago, facts, moment, span, table
from clutch.wire.experiments import trial_of

if TYPE_CHECKING:
    from clutch.wire.experiment_api import ExperimentDetail, SearchPreview, TrialDetail
    from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView, WorkloadView
    from clutch.wire.metrics import Series

CURVES_MAX = 12
"""So many trials are drawn at once, the best ones; more would be a knot."""
COLOURS = ("36", "33", "35", "34", "32", "31", "96", "93", "95", "94", "92", "91")


def best_of(row: ExperimentView | TrialView) -> str:
    return number(row.best) if row.has_best else ""


def words(joined: str) -> str:
    """Labels as people read them."""
    return ", ".join(part for part in joined.split(",") if part)


EXPERIMENTS = (
    Column("id", lambda row: row.key),
    Column("name", lambda row: row.name, 3),
    Column("state", lambda row: row.state),
    Column("search", lambda row: row.method, 6),
    Column("progress", lambda row: f"{row.progress:.0%}", 2, True),
    Column("trials", lambda row: f"{row.trials_ended}/{row.trials}", 4, True),
    Column("best", best_of, 1, True),
    Column("metric", lambda row: row.metric, 5),
    Column("owner", lambda row: row.owner, 8),
    Column("workspace", lambda row: f"{row.workspace}{'/' + row.project if row.project else ''}", 9),
    Column("labels", lambda row: words(row.labels), 7),
    Column("age", lambda row: ago(row.submitted_at, time.time()), 3, True),
    Column("detail", lambda row: row.detail, 10),
)
TRIALS = (
    Column("trial", lambda row: row.trial, right=True),
    Column("state", lambda row: row.state),
    Column("best", best_of, 0, True),
    Column("at", lambda row: row.best_step if row.has_best else "", 4, True),
    Column("last", lambda row: number(row.last) if row.has_last else "", 3, True),
    Column("step", lambda row: row.last_step if row.has_last else "", 2, True),
    Column("asked", lambda row: row.length or "", 7, True),
    Column("restarts", lambda row: row.restarts or "", 6, True),
    Column("hyperparameters", lambda row: hparams_text(row.hparams), 1),
    Column("labels", lambda row: words(row.labels), 8),
    Column("detail", lambda row: row.detail, 5),
)
WORKLOADS = (
    Column("#", lambda row: row.number, right=True),
    Column("what", lambda row: row.kind),
    Column("state", lambda row: row.state, 2),
    Column("step", lambda row: row.step or "", 1, True),
    Column("length", lambda row: row.length or "", 1, True),
    Column("run", lambda row: row.epoch or "", 4, True),
    Column("when", lambda row: moment(row.at), 3),
    Column("took", lambda row: span(row.done_at - row.at) if row.done_at > row.at else "", 5, True),
    Column("value", lambda row: _shortened(row.value)),
)
CHECKPOINTS = (
    Column("id", lambda row: row.key),
    Column("trial", lambda row: row.trial, 3),
    Column("step", lambda row: row.step, 0, True),
    Column("metric", lambda row: number(row.value) if row.has_value else "", 1, True),
    Column("size", lambda row: _size(row.size_bytes), 2, True),
    Column("state", lambda row: row.state),
    Column("held by", lambda row: words(row.pins), 5),
    Column("storage", lambda row: row.storage or "workspace", 6),
    Column("age", lambda row: ago(row.committed_at, time.time()), 4, True),
)


def counted(count: int, noun: str) -> str:
    """``1 trial``, ``3 trials``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _size(size_bytes: int) -> str:
    from clutch.sdk.code import human_size

    return human_size(size_bytes)


def _shortened(text: str) -> str:
    """A number in few characters; any other word as it is."""
    try:
        return number(float(text))
    except (ValueError, OverflowError):  # a word; an infinity or NaN, which are short already
        return text


def hparams_text(text: str) -> str:
    """``lr=0.01 layers=3``; nested ones with dots."""
    import msgspec

    return " ".join(f"{name}={_value(value)}" for name, value in _flat(msgspec.json.decode(text)))


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not path):
        return [pair for name, inner in value.items() for pair in _flat(inner, f"{path}.{name}" if path else name)]
    return [(path, value)]


def _value(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


# -- one experiment -----------------------------------------------------------------------------------------------


def experiment_text(detail: ExperimentDetail, trials: Sequence[TrialView], width: int | None) -> str:
    view = detail.view
    head = facts(
        [
            ("experiment", view.key),
            ("name", view.name),
            ("state", view.state),
            ("why", view.detail),
            ("search", f"{view.method} for {'the least' if view.smaller_is_better else 'the greatest'} {view.metric}"),
            ("progress", f"{bar(view.progress, 20)} {view.progress:.0%}"),
            ("trials", _counts(view)),
            ("best", _best(view)),
            ("checkpoint", view.best_checkpoint),
            ("description", view.description),
            ("labels", words(view.labels)),
            ("notes", view.notes),
            ("owner", f"{view.owner} in {view.workspace}{'/' + view.project if view.project else ''}"),
            ("priority", f"{view.priority}{f', at most {view.max_slots} slots' if view.max_slots else ''}"),
            ("seed", view.seed),
            ("forked from", view.parent),
            ("code", detail.code),
            ("submitted", moment(view.submitted_at)),
            ("ended", moment(view.ended_at)),
            ("archived", "yes" if view.archived else ""),
        ]
    )
    return head if not trials else f"{head}\n\n" + "\n".join(table(ranked(view, trials), TRIALS, width))


def _counts(view: ExperimentView) -> str:
    said = f"{view.trials} made, {view.trials_running} running, {view.trials_ended} ended"
    return f"{said}, {view.trials_failed} failed" if view.trials_failed else said


def _best(view: ExperimentView) -> str:
    return f"{number(view.best)} (trial {view.best_trial}, step {view.best_step})" if view.has_best else ""


def ranked(view: ExperimentView, trials: Sequence[TrialView]) -> list[TrialView]:
    """The best first, those without a value last."""
    sign = 1.0 if view.smaller_is_better else -1.0
    return sorted(trials, key=lambda row: (not row.has_best, sign * row.best, row.trial))


class Screen(NamedTuple):
    width: int
    height: int
    colour: bool = False


def live_lines(
    view: ExperimentView, trials: Sequence[TrialView], series: Sequence[Series], screen: Screen
) -> list[str]:  # fmt: skip
    """An experiment on a screen of this size: its head, its curves, its best trials."""
    width, height, colour = screen
    order = ranked(view, trials)
    head = [
        f"{view.key}  {view.name}  {view.state}  {bar(view.progress, 24)} {view.progress:.0%}",
        f"{_counts(view)}   best {view.metric}: {_best(view) or 'none yet'}",
    ]
    if view.detail:
        head.append(view.detail)
    room = max(0, height - len(head) - 3)
    tall = min(12, room // 2) if room >= 10 else 0
    curves = curves_of(order, series, colour)
    drawn = plot(curves, width - 1, tall) if tall and are_curves(curves) else []
    rows = table(order[: max(1, room - len(drawn))], TRIALS, width, colour)
    return [*head, "", *drawn, *([""] if drawn else []), *rows]


def curves_of(order: Sequence[TrialView], series: Sequence[Series], colour: bool) -> list[Curve]:
    """One curve for each of the best trials, the best on top."""
    by_trial: dict[int, list[tuple[float, float]]] = {}
    for one in series:
        whose = trial_of(one.member.task)
        if whose is not None:
            points = [(float(p.step), float(p.value)) for p in one.points if not isinstance(p.value, str)]
            by_trial.setdefault(whose[1], []).extend(points)
    shown = [row for row in order if row.trial in by_trial][:CURVES_MAX]
    found = [
        Curve(sorted(by_trial[row.trial]), COLOURS[place % len(COLOURS)] if colour else "")
        for place, row in enumerate(shown)
    ]
    return found[::-1]


def _progress(fraction: float, message: str) -> str:
    return f"{bar(fraction, 20)} {fraction:.0%} {message}" if fraction or message else ""


def trial_text(detail: TrialDetail, width: int | None) -> str:
    view = detail.view
    head = facts(
        [
            ("trial", view.key),
            ("experiment", view.experiment),
            ("state", view.state),
            ("why", view.detail),
            ("progress", _progress(detail.progress, detail.message)),
            ("best", f"{number(view.best)} at step {view.best_step}" if view.has_best else ""),
            ("last", f"{number(view.last)} at step {view.last_step}" if view.has_last else ""),
            ("asked", view.length or ""),
            ("checkpoint", f"{view.checkpoint} at step {view.checkpoint_step}" if view.checkpoint else ""),
            ("restarts", view.restarts or ""),
            ("seed", view.seed),
            ("labels", words(view.labels)),
            ("tasks", ", ".join(detail.tasks)),
            ("began", moment(view.began_at)),
            ("ended", moment(view.ended_at)),
        ]
    )  # fmt: skip
    parts = [head]
    if detail.hparams:
        parts.append("\n".join(["hyperparameters", *(f"  {n} = {_value(v)}" for n, v in _flat(detail.hparams))]))
    if detail.metadata:
        parts.append("\n".join(["metadata", *(f"  {n} = {_value(v)}" for n, v in _flat(detail.metadata))]))
    if detail.summaries:
        parts.append("\n".join(table(detail.summaries, SUMMARIES, width)))
    return "\n\n".join(parts)


SUMMARIES = (
    Column("metric", lambda row: f"{row.group}/{row.name}"),
    Column("last", lambda row: _value(row.last), 0, True),
    Column("at", lambda row: row.last_step, 2, True),
    Column("least", lambda row: "" if row.low is None else number(row.low), 1, True),
    Column("mean", lambda row: "" if row.mean is None else number(row.mean), 3, True),
    Column("greatest", lambda row: "" if row.high is None else number(row.high), 1, True),
    Column("points", lambda row: row.count, 4, True),
)


def preview_text(found: SearchPreview) -> str:
    """What a search will do."""
    about = "" if found.exact else "about "
    trials, slots = counted(found.trials, "trial"), counted(found.slots, "slot")
    lines = [f"{found.method}: {about}{trials}, at most {found.concurrent} at a time, {slots} each"]
    if found.total:
        lines[0] += f", {about}{found.total:,} {found.unit} in all"
    for line in found.lines:
        length = f"{line.length:,} {found.unit}" if line.length else "as long as its program wants"
        lines.append(f"  {line.trials:>6} x {length}")
    if found.samples:
        lines.append("the first would be")
        lines += ["  " + " ".join(f"{n}={_value(v)}" for n, v in _flat(sample)) for sample in found.samples]
    return "\n".join([*lines, *(f"note: {n.path}: {n.problem}" for n in found.notices)])


def workloads_text(rows: Sequence[WorkloadView], width: int | None) -> str:
    return "\n".join(table(rows, WORKLOADS, width)) if rows else "Nothing was asked of it yet."


def checkpoints_text(rows: Sequence[CheckpointRow], width: int | None) -> str:
    return "\n".join(table(rows, CHECKPOINTS, width)) if rows else "No checkpoint."
