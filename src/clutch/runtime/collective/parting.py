"""A rank whose group is over because a peer is gone: it leaves word of it, and does not stay behind.

The thread of the group hears within seconds that a peer is lost; the program hears it in its next call of ours. But it
may never come to one: it waits for that very peer inside of gloo, NCCL or MPI. So it has a moment to leave, and is
ended then, with the stacks of all its threads in its output. A program that wants to go on alone says
``clutch.init(on_peer_lost="raise")``.

What it leaves behind (``wire.last_words``) says that its end follows from another one: such an end is not counted as
the program's failure.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from clutch.runtime.last_words import keep
from clutch.runtime.silence import show_stacks
from clutch.wire.errors import ClutchError, PeerLost
from clutch.wire.last_words import FAILED, PEER_FAILED, PEER_LOST, PEER_LOST_CODE, spoken

if TYPE_CHECKING:
    from collections.abc import Callable

    from clutch.runtime.collective.together import Together

END, RAISE = "end", "raise"
WAYS = (END, RAISE)
GRACE_S = 1.0
"""From the end of the group until the program has begun to leave."""
EXIT_WITHIN_S = 5.0
"""How long the interpreter may take to end: a destructor of PyTorch's waits for peers that are gone."""
LOOK_S = 0.1
WORDS_MAX = 400
FAILED_WORDS = "it failed: "
"""How the cause begins where a rank has said itself that its program failed."""


class Parting:
    """Begun by ``start``, for a group that was made for this run. ``words``: the file of last words; ``ends``: whether
    a program that does not leave is ended."""

    def __init__(self, together: Together, words: str, say: Callable[[str], None], *, ends: bool = True) -> None:
        self._together = together
        self._words = words
        self._say = say
        self._ends = ends
        self._leaves = threading.Event()
        self._closed = False
        self._lost: PeerLost | None = None
        self._thread = threading.Thread(target=self._watch, name="clutch-peers", daemon=True)

    def start(self) -> Parting:
        if self._together.group.session is not None:
            atexit.register(self._at_exit)
            self._thread.start()
        return self

    def leaves(self) -> None:
        """The program is on its way out: whatever it still does has its own deadlines."""
        self._leaves.set()

    def note(self) -> PeerLost | None:
        """Which peer was lost, if the group is over for that; whatever this rank ends with now follows from it."""
        if self._lost is None:
            self._lost = lost_peer(self._together)
            if self._lost is not None:
                keep(self._words, words_about(self._lost))
        return self._lost

    def close(self) -> None:
        self._leaves.set()
        session = self._together.group.session
        if session is not None and not self._closed:
            self._closed = True
            with session.control.changed:
                session.control.changed.notify_all()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        session = self._together.group.session
        assert session is not None
        with session.control.changed:
            session.control.changed.wait_for(lambda: session.control.failed or self._closed)
        lost = self.note()
        if lost is None or not self._ends:
            return
        until = time.monotonic() + GRACE_S
        while (left_s := until - time.monotonic()) > 0 or is_handled():
            if self._leaves.wait(min(LOOK_S, left_s) if left_s > 0 else LOOK_S):
                return
        rank, size = self._together.group.rank, self._together.group.size
        self._say(
            f"rank {rank} of {size} lost {lost.object}: {lost.cause}; it has not left within {GRACE_S:g} s, so it is "
            f'ended, to begin again from its last checkpoint (clutch.init(on_peer_lost="raise") lets it go on); where '
            f"its threads are follows"
        )
        show_stacks()
        os._exit(PEER_LOST_CODE)

    def _at_exit(self) -> None:
        if self._lost is not None:
            faulthandler.dump_traceback_later(EXIT_WITHIN_S, exit=True)


def lost_peer(together: Together) -> PeerLost | None:
    """Why the group is over, if it is because of another rank's end."""
    session = together.group.session
    if session is None or not session.control.failed:
        return None
    try:
        session.control.look()
    except PeerLost as error:
        return error if together.group.rank not in error.ranks else None
    except ClutchError:
        return None
    return None


def words_about(lost: PeerLost) -> str:
    what = PEER_FAILED if lost.cause.startswith(FAILED_WORDS) else PEER_LOST
    return spoken(what, PEER_LOST_CODE, f"{lost.object}: {lost.cause}")


def words_of(rank: int, error: BaseException, what: str) -> str:
    """Of a rank that fails by itself."""
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    return spoken(FAILED, code & 0xFF, f"rank {rank} failed: {what[:WORDS_MAX]}")


def is_handled() -> bool:
    """Whether the main thread is inside of an ``except`` or ``finally`` that has this error: it saves something."""
    found = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error = found[1] if isinstance(found, tuple) else found
    return isinstance(error, PeerLost)
