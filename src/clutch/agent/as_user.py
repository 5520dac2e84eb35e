"""Small processes that an agent starts on behalf of a member, as the user the member will run as.

By a function between fork and exec: the event loop of a running agent does not know the arguments by which
``subprocess`` takes a user.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from clutch.wire.containers import RunAs


def becoming(run_as: RunAs | None) -> Callable[[], None] | None:
    """For ``preexec_fn``; None where it is the agent's own user."""
    if run_as is None or run_as.uid == os.geteuid():
        return None
    return partial(_become, run_as.uid, run_as.gid, list(run_as.groups))


def _become(uid: int, gid: int, groups: list[int]) -> None:
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
