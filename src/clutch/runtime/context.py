"""``with clutch.init() as run``: everything a training script says and asks, on the cluster and off it.

A run is made of parts, one noun each: what it reports (``reporting``), when it must leave (``leaving``), what it saves
(``saving``), what it is asked to do (``searching``), who else it is (``collective``). ``opening`` puts them together;
here they are one object.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from clutch.runtime.hparams import Hparams
from clutch.runtime.info import Info
from clutch.runtime.leaving import Leaving
from clutch.runtime.reporting import VALIDATION, Reporter
from clutch.runtime.trial import Trial
from clutch.runtime.values import plain_group, plain_number, plain_step, plain_values
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotAuthenticated, Stale, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from clutch.runtime.checkpoint_select import Selector
    from clutch.runtime.collective.parting import Parting
    from clutch.runtime.collective.saving import ShardedSaving
    from clutch.runtime.collective.together import Together
    from clutch.runtime.distributed import Group
    from clutch.runtime.distributed.reducers import Reducer
    from clutch.runtime.profiling import Profiler
    from clutch.runtime.saving import SavedCheckpoint, Saver, Saving, SharedKeeper
    from clutch.runtime.searching import Best, Metadata, Operation, Search
    from clutch.runtime.silence import Silence

TRAINING = "training"
ACKNOWLEDGE_S = 20.0
SETTLE_WITHIN_S = 5.0
"""So long a checkpoint waits for the disk that reports are spooled to."""


class Parts(msgspec.Struct, kw_only=True):
    """What a run is made of."""

    info: Info
    trial: Trial
    hparams: Hparams
    reporter: Reporter
    leaving: Leaving
    keeper: Callable[[], SharedKeeper]
    search: Callable[[], Search]
    output: Callable[[], Path]
    """The folder for what the run leaves behind itself; made when asked for."""
    declare_finished: Callable[[], None] | None = None
    on_end: list[Callable[[bool, str], None]] = msgspec.field(default_factory=list)
    """Told last of all whether the run failed, and with what words."""
    say: Callable[[str], None]
    together: Together | None = None
    """The ranks of this run; None: there is one, or only rank 0 is one of us."""
    silence: Silence | None = None
    parting: Parting | None = None


class Run:
    """One run of a script. Made by ``clutch.init()``; ended by the end of its ``with`` block, or by ``close``."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._reporter = parts.reporter
        self._leaving = parts.leaving
        self._saver: Saver | None = None
        self._search: Search | None = None
        self._metadata: Metadata | None = None
        self._profiler: Profiler | None = None
        self._config: dict[str, Any] | None = None
        self._finished = False
        self._closed = False
        self._warned = False
        self._validated = -1
        self._process = os.getpid()
        self._together = parts.together
        self._group: Group | None = parts.together.group if parts.together is not None else None
        self._silence = parts.silence
        self._speaks = self.rank == 0
        self.hparams = parts.hparams
        atexit.register(self._at_exit)
        if parts.trial.profiling and parts.info.local_rank == 0:
            self.profile()

    # -- who it is -------------------------------------------------------------------------------------------------

    @property
    def experiment(self) -> str:
        """The experiment's id; empty when there is none."""
        return self._parts.trial.experiment

    @property
    def trial(self) -> int:
        """Its number in its experiment, from 1; 0 when there is none."""
        return self._parts.trial.trial

    @property
    def name(self) -> str:
        return self._parts.trial.name

    @property
    def seed(self) -> int:
        return self._parts.trial.seed

    @property
    def data(self) -> dict[str, Any]:
        """What the configuration's ``data`` says."""
        return self._parts.trial.data

    @property
    def config(self) -> dict[str, Any]:
        """The experiment's whole configuration."""
        if self._config is None:
            self._config = dict(msgspec.json.decode(self._parts.trial.config))
        return self._config

    @property
    def epoch(self) -> int:
        """Which run of this trial it is: 1 for the first, one more after each interruption."""
        return self._parts.info.epoch

    @property
    def rank(self) -> int:
        return self._parts.info.process_rank if self._group is None else self._group.rank

    @property
    def size(self) -> int:
        return self._parts.info.process_size if self._group is None else self._group.size

    @property
    def distributed(self) -> Group:
        """The ranks of this run: ``rank``, ``size``, ``local_rank``, ``gather``, ``broadcast``, ``barrier``, ..."""
        if self._group is None:
            if self.size > 1:
                raise Conflict(
                    f"rank {self.rank} of {self.size} has no group with the others",
                    object="run",
                    next_step='Give clutch.init(distributed=...) a Group or "torch".',
                )
            from clutch.runtime.distributed import Group

            self._group = Group.create(0, 1)
        return self._group

    @property
    def on_cluster(self) -> bool:
        return self._parts.info.on_cluster

    @property
    def output_dir(self) -> Path:
        """A folder for files of the run's own; off the cluster it stays, on it it goes when the task ends."""
        return self._parts.output()

    @property
    def tensorboard_dir(self) -> Path:
        folder = self.output_dir / "tensorboard"
        folder.mkdir(exist_ok=True)
        return folder

    # -- reporting -------------------------------------------------------------------------------------------------

    def report(
        self,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        /,
        group: str = TRAINING,
        all_ranks: bool = False,
        reducer: Reducer | Mapping[str, Reducer] | None = None,
        **values: Any,
    ) -> None:
        """Report numbers of one step. Never waits, never fails because of the cluster.

        On several ranks it is rank 0's to report. With ``all_ranks`` all call it, which is a sync point, and what they
        report is reduced: by ``mean``, or as ``reducer`` says (a name, a callable that is given the values of all
        ranks, or one of these by metric).
        """
        found = {**metrics, **values} if metrics else values
        if not all_ranks or self._together is None:
            self._report(plain_group(group), step, found)
        else:
            self._report_together(plain_group(group), step, found, reducer)

    def validate(
        self,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        /,
        all_ranks: bool = False,
        reducer: Reducer | Mapping[str, Reducer] | None = None,
        **values: Any,
    ) -> bool:
        """Report how good the model is; a search decides by it. Whether to go on, as far as that is known by now.

        On several ranks as ``report``; with ``all_ranks`` the answer is the same on each of them.
        """
        found = {**metrics, **values} if metrics else values
        if all_ranks and self._together is not None:
            return not self._report_together(VALIDATION, step, found, reducer)
        self._report(VALIDATION, step, found)
        return not self._leaving.heard()

    def _report_together(self, group: str, step: int, values: Mapping[str, Any], reducer: Any) -> bool:
        """Whether all shall leave."""
        from clutch.runtime.collective.reports import report_together

        together = self._of_all("report")

        def keep(group: str, step: int, values: dict[str, float | int]) -> bool:
            self._reporter.report(group, step, values)
            self._note_validation(group, step)
            return group == VALIDATION and self._leaving.asked()

        stops = report_together(together, (group, step, values), reducer, keep)
        if stops:
            together.stop()
            self._leaving.should_stop()
        return stops or together.stops

    def _note_validation(self, group: str, step: int) -> None:
        if group == VALIDATION and step > self._validated:
            self._validated = step

    def _of_all(self, what: str) -> Together:
        if self._process != os.getpid() or self._closed or self._together is None:
            self._refuse(what)
        self._alive()
        return self._together

    def _alive(self) -> None:
        if self._silence is not None:
            self._silence.heard()

    def _report(self, group: str, step: int, values: Mapping[str, Any]) -> None:
        if not self._speaks or self._process != os.getpid() or self._closed:
            self._refuse("report", "or with all_ranks=True on every rank.")
        if self._silence is not None:
            self._silence.heard()
        step = plain_step(step, group)
        self._reporter.report(group, step, plain_values(values, group, step))
        self._note_validation(group, step)
        if self._reporter.failure is not None and not self._warned:
            self._warn(self._reporter.failure)

    def progress(self, fraction: float, message: str = "") -> None:
        """How far the run is, from 0 to 1, and a sentence; only shown. Never waits."""
        self._alive()
        found = float(plain_number(fraction, "fraction", "progress", 0))
        if not 0.0 <= found <= 1.0:
            raise BadRequest(f"{found} is not from 0 to 1", object="progress")
        if self._speaks and not self._closed:
            self._reporter.progress(found, message[:1000])

    def profile(self, on: bool = True) -> None:
        """Report what this node is doing once a second, in the groups ``system/...``; ``False`` ends that.

        The process with local rank 0 does it for its node; on the others this does nothing.
        """
        if self._parts.info.local_rank != 0:
            return
        if self._profiler is None:
            from clutch.runtime.profiling import Profiler

            self._profiler = Profiler(self._reporter.report)
        if on:
            self._profiler.on()
        else:
            self._profiler.off()

    # -- leaving ---------------------------------------------------------------------------------------------------

    def should_stop(self) -> bool:
        """Whether to save and end now. Once this was true, a normal end means that the run left, not that it is done:
        it goes on later from its last checkpoint, unless it was stopped for good or ``finish`` was called.

        On several ranks all of them ask, equally often, and all hear yes at the same call."""
        if self._silence is not None:
            self._silence.heard()
        return self._leaving.should_stop()

    @property
    def stop_reason(self) -> str:
        """Why: ``preempted``, ``drained``, ``resized``, ``paused``, ``stopped``, ``cancelled``, ``replaced`` (another
        start has taken over), ``signal``; empty while there is no reason."""
        return self._leaving.reason

    @property
    def stop_within_s(self) -> float:
        """Seconds until the run is ended if it does not leave; 0 when nobody asked or that is not known."""
        return self._leaving.remaining_s()

    def finish(self) -> None:
        """The work is complete: a normal end means done, even if the run was asked to leave meanwhile. On several
        ranks it is rank 0's word that counts."""
        self._finished = True

    # -- checkpoints -----------------------------------------------------------------------------------------------

    @property
    def latest_checkpoint(self) -> SavedCheckpoint | None:
        """The last checkpoint that is whole, or what the run shall begin from; None: from nothing. Use it as a path."""
        return self._saving().latest

    def restore(self, selector: Selector | None = None) -> SavedCheckpoint | None:
        """The latest checkpoint, with its files here; of those only what ``selector`` means: patterns, or a function.

        On several ranks a sync point: all get the same checkpoint. What the ranks of one node mean is fetched once.
        """
        self._alive()
        saver = self._saving()
        if self._together is None:
            found = saver.latest
            return None if found is None else saver.fetched(found.id, selector)
        from clutch.runtime.collective.restoring import restore_together

        return restore_together(self._together, saver, selector)

    def checkpoint(
        self,
        step: int,
        metadata: Mapping[str, Any] | None = None,
        *,
        label: str = "",
        background: bool = False,
        shard: bool = False,
        folder: str | os.PathLike[str] | None = None,
    ) -> Saving | ShardedSaving:
        """``with run.checkpoint(step) as path``: write files into ``path``; when the block ends they are durable.

        With ``background`` they are stored while the training goes on; the next checkpoint, or the end of the run,
        waits for them and raises what went wrong. A block that raises leaves no checkpoint.

        With ``shard`` every rank writes a part: a sync point, into a folder of each rank's own or into ``folder``,
        which then stays. Without it a checkpoint is rank 0's to save.
        """
        from clutch.runtime.saving import Saving, Wanted, words

        step = plain_step(step, "checkpoint")
        self._reporter.settle(SETTLE_WITHIN_S)  # a run that goes on from here does not report what came before again
        if shard and self._together is not None and not background:
            from pathlib import Path

            from clutch.runtime.collective.saving import Shard, ShardedSaving

            part = Shard(step=step, label=label, metadata=metadata, folder=Path(folder) if folder else None)
            return ShardedSaving(self._saving(), self._of_all("save checkpoints"), part, self._silence)
        if folder is not None or (shard and self._together is not None):
            raise BadRequest(
                "a folder of the caller's belongs to shard=True on several ranks"
                if folder is not None
                else "one that all ranks write cannot be stored in the background",
                object=f"checkpoint of step {step}",
                next_step="Write into the folder that run.checkpoint() gives." if folder is not None else "",
            )
        if not self._speaks or self._process != os.getpid() or self._closed:
            self._refuse("save checkpoints", "or with shard=True on every rank.")
        self._alive()
        wanted = Wanted(step=step, label=label, metadata=words(metadata, step))
        return Saving(self._saving(), wanted, background=background, silence=self._silence)

    def _saving(self) -> Saver:
        if self._saver is None:
            from clutch.runtime.saving import Saver

            self._saver = Saver(self._parts.keeper())
        return self._saver

    # -- its search ------------------------------------------------------------------------------------------------

    def operations(self) -> Iterator[Operation]:
        """What the search asks for, one after the other; waits for it. Each must be completed before the next; a
        validation at its length does that too.

        On several ranks all of them ask, which is a sync point before each; rank 0 completes them.
        """
        if self._together is not None:
            from clutch.runtime.collective.searching import operations_together

            around = _OfRun(self, self._reporter)
            together = self._of_all("ask for operations")
            return operations_together(self._searching, around, together, self._leaving.asked)
        from clutch.runtime.searching import operations

        if not self._speaks:
            self._refuse("ask for operations")
        return operations(self._searching(), _OfRun(self, self._reporter))

    @property
    def metadata(self) -> Metadata:
        """Notes about the run: a dict whose changes are durable when they are made. Only rank 0 changes them."""
        if self._metadata is None:
            from clutch.runtime.searching import Metadata

            self._metadata = Metadata(self._searching(), None if self._speaks else self._refuse)
        return self._metadata

    def best(self, all_ranks: bool = False) -> Best | None:
        """The best validation of the whole experiment so far; None: there is none yet.

        Any rank may ask; with ``all_ranks`` all do, which is a sync point, and hear the same.
        """
        if not all_ranks or self._together is None:
            return self._searching().best()
        from clutch.runtime.collective.searching import best_together

        return best_together(self._of_all("ask"), self._searching)

    def invalid_hparams(self, reason: str) -> NoReturn:
        """End this trial: it cannot be trained with these hyperparameters. Another one takes its place."""
        from clutch.runtime.searching import InvalidHparams

        raise InvalidHparams(reason, object="hyperparameters")

    def _searching(self) -> Search:
        if self._search is None:
            self._search = self._parts.search()
        return self._search

    # -- the end ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != os.getpid():
            return  # a fork that unwinds: the run is its parent's
        from clutch.runtime.searching import InvalidHparams

        refused = isinstance(error, InvalidHparams) and self._searching().early_exit("invalid_hp", error.cause)
        if self._together is not None and not refused:
            from clutch.runtime.collective.together import refused_elsewhere

            refused = refused_elsewhere(error) and bool(self.experiment)
        elif self._together is not None and error is not None:
            self._together.fails(error)
        if refused:
            self._say(str(error))
            self._finished = True
        self.close(None if refused else error)
        if refused:
            raise SystemExit(0)

    def close(self, error: BaseException | None = None) -> None:
        """End the run: everything reported arrives, or is left in its spool when no master answers in time."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        if self._parts.parting is not None:
            self._parts.parting.leaves()
        if self._silence is not None:
            self._silence.close()
        until = time.monotonic() + self._parts.info.flush_within_s
        if self._profiler is not None:
            self._profiler.off()
        try:
            if self._saver is not None:
                self._saver.close()
        except BaseException as failed:
            error = error or failed
            raise
        finally:
            self._end(error, until)

    def _end(self, error: BaseException | None, until: float) -> None:
        exits = isinstance(error, SystemExit) and error.code in (None, 0)
        normal = error is None or exits
        if self._together is not None and not normal and error is not None:
            self._together.fails(error)
        if self._parts.parting is not None:
            self._parts.parting.note()
        self._reporter.close(max(0.0, until - time.monotonic()))
        if self._reporter.dropped:
            self._say(
                f"{self._reporter.dropped} training points were dropped: they came faster than they could be kept"
            )
        if normal and self._finished and self._speaks:
            self._declare()
        if normal and not self._leaving.acknowledged(max(0.0, min(ACKNOWLEDGE_S, until - time.monotonic()))):
            self._say("no master answered that this run leaves: it may be taken for done")
        self._leaving.close()
        if self._search is not None:
            self._search.close()
        detail = "" if normal or error is None else f"{type(error).__name__}: {error}"
        for end in self._parts.on_end:
            end(not normal, detail)
        if self._parts.parting is not None:
            self._parts.parting.close()
        if self._together is not None:
            self._together.close()

    def _declare(self) -> None:
        if self._parts.declare_finished is None or self._leaving.over:
            return
        try:
            self._parts.declare_finished()
        except (Stale, NotAuthenticated, Conflict):
            return  # it is over already
        except Unavailable as error:
            self._say(f"no master heard that this run is finished: {error}")

    def _at_exit(self) -> None:
        """A script without a ``with`` block ends."""
        if self._process == os.getpid():
            self.close(getattr(sys, "last_value", None))

    def _refuse(self, what: str, other_way: str = "") -> NoReturn:
        if self._closed:
            raise Conflict(f"it has ended and cannot {what} any more", object="run")
        if self._process != os.getpid():
            cause = f"a process that was forked from it cannot {what}"
            raise Conflict(cause, object="run", next_step="Do it in the process that called clutch.init().")
        more = other_way if self._together is not None else ""
        raise Conflict(
            f"the process of rank {self.rank} of {self.size} cannot {what}",
            object="run",
            next_step=f"Do it on rank 0 only: if run.rank == 0{', ' if more else '.'}{more}",
        )

    def _warn(self, failure: Exception) -> None:
        self._warned = True
        if isinstance(failure, ClutchError) and failure.blame == "user":
            raise failure
        self._say(f"reports are not kept any more: {type(failure).__name__}: {failure}")

    def _say(self, words: str) -> None:
        self._parts.say(words)


class _OfRun:
    """A run as its operations see it."""

    def __init__(self, run: Run, reporter: Reporter) -> None:
        self._run = run
        self._reporter = reporter

    def should_stop(self) -> bool:
        return self._run.should_stop()

    def complete(self, length: int, value: float | None) -> None:
        from contextlib import nullcontext

        from clutch.runtime.searching import SAY_WITHIN_S

        number = None if value is None else float(plain_number(value, "metric", "operation", length))
        with self._run._silence or nullcontext():
            self._reporter.flush(SAY_WITHIN_S)  # its last validation comes first
            self._run._searching().complete(length, number)

    def progress(self, fraction: float) -> None:
        self._run.progress(fraction)

    def validated(self) -> int:
        return self._run._validated

    def poll_s(self) -> float:
        from clutch.runtime.searching import POLL_S

        silence = self._run._silence
        return POLL_S if silence is None else min(POLL_S, silence.after_s / 4)
