"""The one tree of errors. Each says its cause, its object and the next step, and knows whom to blame.

::

    ClutchError
    ├── UserError            the caller can mend it
    │   ├── BadRequest           400  bad_request        unknown key, wrong type, impossible amount
    │   │   └── BadConfig        400  bad_config         a configuration; ``problems`` are all that is wrong with it
    │   ├── NotAuthenticated     401  not_authenticated  no token, or one that is unknown, expired or revoked
    │   ├── NotAllowed           403  not_allowed        the caller may not do this
    │   ├── NotFound             404  not_found          no such task, node, lease
    │   ├── Conflict             409  conflict           it exists already, or is in a state that forbids this
    │   │   └── IllegalMove      409  illegal_move       a machine has no such arrow
    │   ├── TooLarge             413  too_large          over a stated limit
    │   ├── QuotaExceeded        422  quota_exceeded     it could never be placed under its quota
    │   └── TooMany              429  too_many           asked too often; wait as long as it says
    ├── ClusterError         the cluster, a disk or the network is at fault; trying again may help
    │   ├── Stale                410  stale              fenced: a newer epoch, lease, term or configuration exists
    │   ├── NotLeader            421  not_leader         ask another process; ``leader`` says which, if known
    │   ├── Unavailable          503  unavailable        not now
    │   │   └── PeerLost         503  peer_lost          a rank of a group died, left or is not heard
    │   ├── TimedOut             504  timed_out          a deadline passed
    │   ├── DataMissing          503  data_missing       files that a program needs are not on this node
    │   ├── DiskFull             507  disk_full          nothing was written
    │   ├── Corrupt              500  corrupt            stored bytes fail their checksum; nothing was changed
    │   └── TooNew               500  too_new            stored by a newer release than this one
    └── BugError             ours; please report it with the story
        └── BrokenInvariant      500  broken_invariant

Only these cross the wire. Assertions are for our own bugs inside pure code; errors are for the world's.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

Blame = Literal["user", "cluster", "bug"]


class ErrorView(msgspec.Struct, frozen=True):
    """An error as it crosses the wire."""

    code: str
    cause: str
    object: str = ""
    next_step: str = ""
    path: str = ""


class Problem(msgspec.Struct, frozen=True):
    """One of several things that are wrong: where, what, and what would be right."""

    path: str
    problem: str
    hint: str = ""


class ProblemsView(ErrorView, frozen=True):
    """An error with several causes. Who knows only ``ErrorView`` reads them in ``cause``, line by line."""

    problems: tuple[Problem, ...] = ()


class ClutchError(Exception):
    """``cause`` says what went wrong, ``object`` what it happened to, ``next_step`` what to do about it."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    blame: ClassVar[Blame] = "bug"

    def __init__(self, cause: str, *, object: str = "", next_step: str = "", path: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.object = object
        self.next_step = next_step
        self.path = path

    def __str__(self) -> str:
        subject = f"{self.object}: " if self.object else ""
        place = f" (at {self.path})" if self.path else ""
        step = f" {self.next_step}" if self.next_step else ""
        return f"{subject}{self.cause.rstrip('.')}{place}.{step}"

    def view(self) -> ErrorView:
        return ErrorView(self.code, self.cause, self.object, self.next_step, self.path)


class UserError(ClutchError):
    """The caller can mend it."""

    code, status, blame = "user_error", 400, "user"


class BadRequest(UserError):
    """What was asked for is malformed or impossible."""

    code, status = "bad_request", 400


class BadConfig(BadRequest):
    """A configuration that is not accepted. ``problems`` are all that is wrong with it, not only the first.

    They are told line by line in ``cause``, and read from there again, so every way an error travels carries them.
    """

    code, status = "bad_config", 400

    def __init__(
        self,
        cause: str = "",
        *,
        object: str = "",
        next_step: str = "",
        path: str = "",
        problems: tuple[Problem, ...] = (),
    ) -> None:
        super().__init__(cause or _listed(problems), object=object, next_step=next_step, path=path)
        self.problems = problems or _problems_in(self.cause)

    def __str__(self) -> str:
        if "\n" not in self.cause:
            return super().__str__()
        subject = f"{self.object}: " if self.object else ""
        step = f"\n{self.next_step}" if self.next_step else ""
        return f"{subject}{self.cause}{step}"

    def view(self) -> ErrorView:
        return ProblemsView(self.code, self.cause, self.object, self.next_step, self.path, self.problems)


def _listed(problems: tuple[Problem, ...]) -> str:
    lines = [f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"]
    for found in problems:
        lines.append(f"- {found.path}: {_one_line(found.problem)}")
        lines += [f"  {_one_line(found.hint)}"] if found.hint else []
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _problems_in(cause: str) -> tuple[Problem, ...]:
    """What ``_listed`` wrote."""
    found: list[Problem] = []
    for line in cause.splitlines()[1:]:
        if line.startswith("- "):
            path, _, problem = line[2:].partition(": ")
            found.append(Problem(path, problem))
        elif found:
            found[-1] = Problem(found[-1].path, found[-1].problem, line.strip())
    return tuple(found)


class NotAuthenticated(UserError):
    """No token came with it, or one that is unknown, expired or revoked."""

    code, status = "not_authenticated", 401


class NotAllowed(UserError):
    """The caller may not do this."""

    code, status = "not_allowed", 403


class NotFound(UserError):
    """There is no such thing."""

    code, status = "not_found", 404


class Conflict(UserError):
    """It exists already, or its state forbids this."""

    code, status = "conflict", 409


class IllegalMove(Conflict):
    """A machine has no such arrow. ``story`` tells how it came to be where it is."""

    code, status = "illegal_move", 409

    def __init__(self, cause: str, *, object: str = "", next_step: str = "", story: tuple[str, ...] = ()) -> None:
        super().__init__(cause, object=object, next_step=next_step)
        self.story = story


class TooLarge(UserError):
    """It is over a stated limit."""

    code, status = "too_large", 413


class QuotaExceeded(UserError):
    """It could never be placed under its quota."""

    code, status = "quota_exceeded", 422


class TooMany(UserError):
    """Asked too often; the same call may succeed after a while."""

    code, status = "too_many", 429


class ClusterError(ClutchError):
    """The cluster, a disk or the network is at fault."""

    code, status, blame = "cluster_error", 503, "cluster"


class Stale(ClusterError):
    """A newer epoch, lease, term or configuration exists; the writer must stop."""

    code, status = "stale", 410


class NotLeader(ClusterError):
    """Another process leads. ``leader`` is its name, if known."""

    code, status = "not_leader", 421

    def __init__(self, cause: str, *, leader: str = "", object: str = "", next_step: str = "") -> None:
        super().__init__(cause, object=object, next_step=next_step)
        self.leader = leader


class Unavailable(ClusterError):
    """Not now; the same call may succeed later."""

    code, status = "unavailable", 503


class PeerLost(Unavailable):
    """A rank of a group died, left or is not heard any more. ``ranks`` are those, where they are known."""

    code, status = "peer_lost", 503

    def __init__(
        self, cause: str, *, object: str = "", next_step: str = "", path: str = "", ranks: tuple[int, ...] = ()
    ) -> None:
        super().__init__(cause, object=object, next_step=next_step, path=path)
        self.ranks = ranks


class TimedOut(ClusterError):
    """A deadline passed."""

    code, status = "timed_out", 504


class DiskFull(ClusterError):
    """The disk is full; nothing was written."""

    code, status = "disk_full", 507


class DataMissing(ClusterError):
    """Files that a program needs cannot be had on this node."""

    code, status = "data_missing", 503


class Corrupt(ClusterError):
    """Stored bytes fail their checksum or do not decode; nothing was changed."""

    code, status = "corrupt", 500


class TooNew(ClusterError):
    """Stored by a newer release than this one."""

    code, status = "too_new", 500


class BugError(ClutchError):
    """Ours. Please report it with the story."""

    code, status, blame = "bug", 500, "bug"


class BrokenInvariant(BugError):
    """A promise does not hold."""

    code, status = "broken_invariant", 500
