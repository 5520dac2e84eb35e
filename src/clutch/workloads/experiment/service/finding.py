"""From what a person typed to an experiment, a trial or a checkpoint. Only among what they may see."""

from __future__ import annotations

from typing import TypeVar, cast

from clutch.backends.journal.base import FullJournal, Where
from clutch.core.checks import NAME
from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView

SHOWN = 5
"""So many candidates are named when several fit."""

Visible = tuple[str, ...] | None
Found = TypeVar("Found", ExperimentView, CheckpointRow)


async def find_experiment(services: Services, caller: Caller, wanted: str) -> ExperimentView:
    """The experiment that is meant, with the route's role checked in its workspace.

    An id outranks a beginning of one, which outranks a name; of equal names one that lives outranks those that ended.
    ``NotFound`` when none fits or the caller may not see it, ``Conflict`` naming the candidates when several do.
    """
    found = await look_up(services.journal, caller.filters(), wanted)
    caller.require(found.workspace, f"experiment {found.key}")
    return found


async def look_up(journal: FullJournal, visible: Visible, wanted: str) -> ExperimentView:
    """The one experiment in the visible workspaces (None: all) that is meant."""
    if not NAME.fullmatch(wanted):
        raise no_such("experiment", wanted)
    begun = await _begun(journal, ExperimentView, visible, wanted)
    if not begun:
        where: Where = {} if visible is None else {"workspace": visible}
        named = await journal.page(ExperimentView.table, {**where, "name": wanted}, "-submitted_at", "", SHOWN)
        found = [cast(ExperimentView, view) for view in named]
        begun = [view for view in found if not view.ended_at] or found
    if len(begun) == 1:
        return begun[0]
    if not begun:
        raise no_such("experiment", wanted)
    raise Conflict(
        f"several experiments fit: {', '.join(f'{v.key} ({v.name}, {v.state})' for v in begun)}",
        object=f"experiment {wanted}",
        next_step="Say more of the id.",
    )


async def _begun(journal: FullJournal, kind: type[Found], visible: Visible, wanted: str) -> list[Found]:
    """What has this id, or else what has an id that begins so, in the visible workspaces."""
    exact = cast(Found | None, await journal.view(kind.table, wanted))
    if exact is not None and (visible is None or exact.workspace in visible):
        return [exact]
    where: Where = {} if visible is None else {"workspace": visible}
    page = await journal.page(kind.table, where, "key", wanted, SHOWN)
    return [cast(Found, view) for view in page if view.key.startswith(wanted)]


async def find_trial(services: Services, caller: Caller, wanted: str) -> TrialView:
    """The trial ``EXPERIMENT.NUMBER``, the experiment as in ``find_experiment``; also by the id of one of its tasks."""
    experiment, dot, rest = wanted.rpartition(".")
    number = rest.partition("-")[0]
    if not dot or not number.isdecimal():
        caller.filters()
        raise no_such("trial", wanted)
    try:
        found = await find_experiment(services, caller, experiment)
    except NotFound:
        raise no_such("trial", wanted) from None
    trial = await services.journal.view(TrialView.table, f"{found.key}.{int(number)}")
    if not isinstance(trial, TrialView):
        raise no_such("trial", wanted)
    return trial


async def find_checkpoint(services: Services, caller: Caller, wanted: str) -> CheckpointRow:
    """The checkpoint by its id or a unique beginning of it, with the route's role checked in its workspace."""
    found = await _checkpoint(services.journal, caller.filters(), wanted)
    caller.require(found.workspace, f"checkpoint {found.key}")
    return found


async def _checkpoint(journal: FullJournal, visible: Visible, wanted: str) -> CheckpointRow:
    if not NAME.fullmatch(wanted):
        raise no_such("checkpoint", wanted)
    begun = await _begun(journal, CheckpointRow, visible, wanted)
    if len(begun) == 1:
        return begun[0]
    if not begun:
        raise no_such("checkpoint", wanted)
    raise Conflict(
        f"several checkpoints fit: {', '.join(row.key for row in begun)}",
        object=f"checkpoint {wanted}",
        next_step="Say more of the id.",
    )


WHERE = {
    "experiment": "List experiments with 'clutch experiment list --all'.",
    "trial": "Write EXPERIMENT.NUMBER; 'clutch trial list EXPERIMENT' shows those there are.",
    "checkpoint": "'clutch checkpoint list EXPERIMENT' shows those there are.",
}


def no_such(kind: str, wanted: str) -> NotFound:
    return NotFound(
        f"there is no such {kind}, or you may not see it", object=f"{kind} {wanted[:128]}", next_step=WHERE[kind]
    )
