"""Whom this term has heard, and what it last said to them. Soft: a new master begins with an empty one.

It knows no socket and no clock. The loop tells it what was heard and asks it what is due: whom to greet, who has fallen
silent, who has not yet taken in what was last wanted of him.
"""

from __future__ import annotations

from enum import StrEnum

from clutch.core.liveness import Patience, Pulse, pulse, suspect_at
from clutch.wire.ids import NodeId, Term
from clutch.wire.messages import Hello, Report

GREETING_PAUSE_S = 0.2
"""A node is greeted at most this often, however many reports of it we do not believe."""


class Heard(StrEnum):
    """What a report is to us."""

    NEWS = "news"
    OLD = "old"  # late or doubled: we know better already
    STRANGE = "strange"  # another term's, or another start of the agent: greet it and see whether it answers


class Contact:
    """One node, as far as this term has heard of it."""

    __slots__ = (
        "greeted_at",
        "greeting",
        "heard_at",
        "said_at",
        "said_sequence",
        "sequence",
        "session",
        "silent",
        "took",
    )

    def __init__(self) -> None:
        self.session = ""
        self.sequence = -1
        self.heard_at = 0.0
        self.silent = True
        self.greeting = 0
        self.greeted_at = float("-inf")
        self.said_sequence = 0
        self.said_at = 0.0
        self.took = 0
        """The sequence of the last ``Wanted`` that its reports reflect."""


class Contacts:
    """Every node this term has heard."""

    def __init__(self, suspect_after_s: float, repeat_after_s: float) -> None:
        self.patience = Patience(suspect_after_s=suspect_after_s)
        self.repeat_after_s = repeat_after_s
        self.generation = 0
        self.term: Term = 0
        self._contacts: dict[NodeId, Contact] = {}

    def take(self, report: Report, now: float) -> Heard:
        """Note a report. Another start of an agent is believed only when it echoes our latest greeting: messages of
        one that is gone may still be under way, and must not take the place of the one that is there."""
        contact = self._contacts.setdefault(report.node, Contact())
        if (report.generation, report.term) != (self.generation, self.term):
            return Heard.STRANGE
        if report.session != contact.session:
            if report.greeting != contact.greeting:
                return Heard.STRANGE
            contact.session, contact.sequence = report.session, -1
        if report.sequence <= contact.sequence:
            return Heard.OLD
        contact.sequence = report.sequence
        contact.heard_at, contact.silent = now, False
        contact.took = report.wanted_sequence
        return Heard.NEWS

    def greet(self, node: NodeId, now: float) -> Hello | None:
        """What to say to a stranger; None if it was greeted a moment ago."""
        contact = self._contacts[node]
        if now - contact.greeted_at < GREETING_PAUSE_S:
            return None
        contact.greeting += 1
        contact.greeted_at = now
        return Hello(self.generation, self.term, contact.greeting)

    def said(self, node: NodeId, sequence: int, now: float) -> None:
        contact = self._contacts.get(node)
        if contact is not None:
            contact.said_sequence, contact.said_at = sequence, now

    def fallen_silent(self, now: float) -> list[NodeId]:
        """Nodes not heard for too long; each is named once per silence."""
        found = []
        for node, contact in self._contacts.items():
            if not contact.silent and pulse(contact.heard_at, now, self.patience) is not Pulse.ALIVE:
                contact.silent = True
                found.append(node)
        return found

    def next_silence_at(self) -> float | None:
        """When the first of them falls silent if nothing more is heard."""
        in_touch = (contact for contact in self._contacts.values() if not contact.silent)
        return min((suspect_at(contact.heard_at, self.patience) for contact in in_touch), default=None)

    def to_repeat(self, now: float) -> list[NodeId]:
        """Nodes in touch whose last report does not yet reflect what was last said to them."""
        return [
            node
            for node, contact in self._contacts.items()
            if not contact.silent
            and contact.took < contact.said_sequence
            and now - contact.said_at >= self.repeat_after_s
        ]
