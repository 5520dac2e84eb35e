"""The ranks of one run. What one of them does for all, and what all bring to one, ends alike on each of them.

A call that all make is a *sync point*. Whatever goes wrong in one, on any rank, is one error with one text on every
rank: nobody goes on with half of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from clutch.backends.transports.frames import raised
from clutch.runtime.collective.parting import FAILED_WORDS, words_of
from clutch.runtime.distributed.payload import pack
from clutch.runtime.last_words import keep
from clutch.wire.errors import BadRequest, ClutchError, ErrorView, PeerLost, Unavailable

if TYPE_CHECKING:
    from clutch.runtime.distributed import Agreement, Group

T = TypeVar("T")
WITHIN_S = 600.0
"""How long ranks wait for each other at a sync point."""
WORK_WITHIN_S = 24 * 3600.0
"""The same while one of them works for all: a rank that dies is noticed within seconds in any case."""
WORKERS_ASK_CHIEF, CHIEF_ONLY, WORKERS_ASK_MASTER = "workers-ask-chief", "chief-only", "workers-ask-master"
MODES = (WORKERS_ASK_CHIEF, CHIEF_ONLY, WORKERS_ASK_MASTER)
REFUSED_HPARAMS = "hyperparameters"
"""The object of the error by which a rank's ``invalid_hparams`` reaches the others."""


class Together:
    """``own``: the group was made for this run, and is closed with it. ``words``: the file of last words."""

    def __init__(
        self, group: Group, *, mode: str = WORKERS_ASK_CHIEF, own: bool = True, words: str = ""
    ) -> None:  # fmt: skip
        self.group = group
        self._words = words
        self.mode = mode
        self.own = own
        self._agreement: Agreement | None = None
        self._stops = False
        self._told = False

    @property
    def is_chief(self) -> bool:
        return self.group.rank == 0

    @property
    def has_failed(self) -> bool:
        """Nothing can be done together any more."""
        session = self.group.session
        return session is not None and session.control.failed

    # -- sync points -----------------------------------------------------------------------------------------------

    def from_chief(self, work: Callable[[], T], within_s: float = WITHIN_S) -> T:
        """What the work gives on rank 0, on every rank; or what it raises there."""
        outcome: list[Any] = []
        failed: BaseException | None = None
        if self.is_chief:
            try:
                outcome = _sendable([None, work()])
            except BaseException as error:
                failed, outcome = error, failure(error, None)
        outcome = self.group.broadcast(outcome, timeout_s=within_s)
        found: T = self._ended(outcome, failed)
        return found

    def made_of_all(
        self, bring: Callable[[], Any], decide: Callable[[list[Any]], T], within_s: float = WITHIN_S
    ) -> T:  # fmt: skip
        """What rank 0 makes of what each rank brings, on every rank. The first rank that cannot bring decides the
        error; nothing is decided then."""
        brought: list[Any] = []
        failed: BaseException | None = None
        try:
            brought = _sendable([None, bring()])
        except BaseException as error:
            failed, brought = error, failure(error, self.group.rank)
        return self.decided(brought, failed, decide, within_s)

    def decided(
        self, brought: list[Any], failed: BaseException | None, decide: Callable[[list[Any]], T], within_s: float
    ) -> T:
        """As ``made_of_all``, with what was brought, or why it could not be, known already."""
        every = self.group.gather(brought, timeout_s=within_s)
        outcome: list[Any] = []
        if every is not None:
            wrong = next((said for said, _ in every if said is not None), None)
            if wrong is not None:
                outcome = [wrong, None]
            else:
                try:
                    outcome = _sendable([None, decide([value for _, value in every])])
                except BaseException as error:
                    failed = failed or error
                    outcome = failure(error, None)
        outcome = self.group.broadcast(outcome, timeout_s=within_s)
        found: T = self._ended(outcome, failed)
        return found

    def _ended(self, outcome: list[Any], failed: BaseException | None) -> Any:
        """On every rank alike."""
        wrong, value = outcome
        if wrong is None:
            return value
        if failed is not None and not isinstance(failed, Exception):
            raise failed  # somebody wants this process to end
        raise raised(ErrorView(*wrong)) from failed

    # -- leaving ---------------------------------------------------------------------------------------------------

    def should_stop(self, asked: Callable[[], bool]) -> bool:
        """The same at the same call of every rank, as its mode says."""
        if self._stops:
            self.group.check()
            return True
        if self.mode == WORKERS_ASK_MASTER:
            self._stops = asked()
        elif self.mode == CHIEF_ONLY:
            if not self.is_chief:
                raise chief_only(self.group, "ask whether to stop", 'preempt_mode="workers-ask-chief" lets all ranks.')
            self._stops = asked()
        else:
            if self._agreement is None:
                from clutch.runtime.distributed import Agreement

                self._agreement = Agreement(self.group, asked)
            self._stops = self._agreement.should_stop()
        return self._stops

    def stop(self) -> None:
        """All ranks know by a sync point that they leave."""
        self._stops = True

    @property
    def stops(self) -> bool:
        return self._stops

    # -- the end ---------------------------------------------------------------------------------------------------

    def fails(self, error: BaseException) -> None:
        """This rank ends because of that: the others hear why, in what they do together next.

        They may be gone, and we ended with them, before this rank has closed its run and exited: so it leaves word of
        its failure first.
        """
        session = self.group.session
        if session is None or session.control.failed or self._told:
            return
        self._told = True
        from clutch.runtime.distributed.notes import Failed
        from clutch.runtime.searching import InvalidHparams

        rank = self.group.rank
        if isinstance(error, InvalidHparams):
            view = ErrorView(error.code, error.cause, REFUSED_HPARAMS)
        else:
            what = f"{type(error).__name__}: {error}"
            keep(self._words, words_of(rank, error, what))
            cause = f"{FAILED_WORDS}{what}"[:500]
            view = PeerLost(cause, object=f"rank {rank}", next_step="See its output.").view()
        with suppress(ClutchError):  # its verdict is our own error
            session.control.verdict(Failed(view, (rank,)))

    def close(self) -> None:
        if self.own:
            self.group.close()


def _sendable(said: list[Any]) -> list[Any]:
    """What cannot be sent is refused before others wait for it."""
    pack(said)
    return said


def chief_only(group: Group, what: str, next_step: str) -> BadRequest:
    return BadRequest(
        f"the process of rank {group.rank} of {group.size} cannot {what}", object="run", next_step=next_step
    )


def refused_elsewhere(error: BaseException | None) -> bool:
    """Whether another rank has said that these hyperparameters cannot be trained with."""
    return isinstance(error, ClutchError) and error.object == REFUSED_HPARAMS and error.blame != "user"


def failure(error: BaseException, rank: int | None) -> list[Any]:
    """What a rank brings instead; ``rank`` is named where the error is that rank's own."""
    whose = "" if rank is None else f"rank {rank}"
    if isinstance(error, ClutchError):
        found = ", ".join(part for part in (whose, error.object) if part)
        return [[error.code, error.cause, found, error.next_step], None]
    problem = Unavailable(f"{type(error).__name__}: {error}"[:1000], object=whose or "rank 0")
    return [[problem.code, problem.cause, problem.object, ""], None]


def plain(metadata: Any, what: str) -> Any:
    """As it arrives elsewhere: JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(metadata))
    except (TypeError, msgspec.MsgspecError) as error:
        raise BadRequest(f"it cannot be written: {error}", object=what) from error
