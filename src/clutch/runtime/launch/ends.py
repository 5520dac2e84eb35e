"""How a rank failed and what it said last, in the words that its user reads."""

from __future__ import annotations

import collections
import signal

from clutch.wire.last_words import FAILED, PEER_FAILED, PEER_LOST, spoken, understood

TAIL_BYTES = 2000
"""Of a failed rank's last lines, so that one write to a FIFO is whole."""
REASON_MAX = 450
"""What an exit record and a list have room for."""


class End:
    """How a rank failed, and what it said last. ``words``: what it left behind, if it ended because of a peer.
    ``asked``: it had been asked to end before it did."""

    def __init__(self, who: str, code: int, tail: list[str], words: str = "", asked: bool = False) -> None:
        self.who, self.code, self.tail, self.words, self.asked = who, code, tail, words, asked
        said = understood(words)
        self.what, self.peer = (said.what, said.text) if said.what in (PEER_LOST, PEER_FAILED) else (FAILED, "")

    @property
    def follows(self) -> bool:
        """It is not the cause, which is elsewhere."""
        return self.what != FAILED

    @property
    def how(self) -> str:
        if self.follows:
            return f"{self.who} lost {self.peer}"
        if self.code >= 0:
            return f"{self.who} exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"{self.who} was killed by {name}"

    def last_words(self) -> str:
        """For the agent, which tells the master why this member ended."""
        return spoken(self.what, self.code, self.sentence())

    def sentence(self) -> str:
        """One line, as many of the last words as there is room for."""
        if self.follows:
            return self.how[:REASON_MAX]
        room, chosen = REASON_MAX - len(self.how), list[str]()
        for line in reversed(self.tail):
            word = " ".join(line.split())
            if len(word) + 3 > room:
                if not chosen and room > 20:
                    chosen.append(f"...{word[-(room - 6) :]}")
                break
            chosen.append(word)
            room -= len(word) + 3
        return f"{self.how}; its last lines: {' | '.join(reversed(chosen))}" if chosen else self.how

    def paragraph(self) -> str:
        if self.follows:
            return self.how
        lines = "".join(f"\n    {line}" for line in self.tail)
        return f"{self.how}; its last lines:{lines}" if self.tail else f"{self.how}; it said nothing"


def tail_text(tail: collections.deque[bytes]) -> list[str]:
    """The newest lines, in so many bytes as fit into one message."""
    found: list[str] = []
    room = TAIL_BYTES
    for line in reversed(tail):
        text = "".join(sign if sign.isprintable() else " " for sign in line.decode("utf-8", "replace"))
        if len(text.encode()) > room:
            if not found:
                found.append(text.encode()[-room:].decode("utf-8", "ignore"))
            break
        found.append(text)
        room -= len(text.encode())
    return found[::-1]
