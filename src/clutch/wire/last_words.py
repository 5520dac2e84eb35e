"""What a member, or one of its ranks, leaves behind about its end: ``boot: TEXT`` or ``WHAT CODE: TEXT``.

It stands in the file that ``CLUTCH_LAST_WORDS`` names. A rank writes there that it has lost a peer, the process over
the ranks how one of them ended; the agent reads it when the member is gone. An exit code alone says neither, and a
member that is ended by us while it is still ending has none of its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FAILED = "failed"
PEER_LOST = "peer_lost"
PEER_FAILED = "peer_failed"
"""The last two as in ``ExitCause``, which need not be imported by a process that only starts others."""
PEER_LOST_CODE = 121
"""Exit code of a rank that was ended because it stayed behind in other code when a peer was lost."""
_SAID = re.compile(rf"({FAILED}|{PEER_LOST}|{PEER_FAILED}) (-?\d{{1,3}}): ")


class Words(NamedTuple):
    what: str
    """Empty: the text is all there is."""
    code: int
    text: str


def spoken(what: str, code: int, text: str) -> str:
    return f"{what} {code}: {text}"


def understood(said: str) -> Words:
    found = _SAID.match(said)
    return Words(found[1], int(found[2]), said[found.end() :]) if found else Words("", 0, said)
