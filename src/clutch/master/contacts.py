"""Whom this term has heard, and what it last said to them. Soft: a new master begins with an empty one.

It knows no socket and no clock. The loop tells it what was heard and asks it what is due: whom to greet, who has fallen
silent, who has not yet taken in what was last wanted of him.
"""

from __future__ import annotations

from clutch.wire.ids import NodeId, Term
from clutch.wire.messages import Report

SESSIONS_REMEMBERED = 16


class Contact:
    """One node, as far as this term has heard of it."""

    __slots__ = ("heard_at", "retired", "said_at", "said_sequence", "sequence", "session", "silent", "took_sequence")

    def __init__(self, session: str) -> None:
        self.session = session
        self.sequence = -1
        self.heard_at = 0.0
        self.silent = False
        self.said_sequence = 0
        self.said_at = 0.0
        self.took_sequence = 0
        self.retired: list[str] = []


class Contacts:
    """Every node this term has heard."""

    def __init__(self, suspect_after_s: float, repeat_after_s: float) -> None:
        self.suspect_after_s = suspect_after_s
        self.repeat_after_s = repeat_after_s
        self.generation = 0
        self.term: Term = 0
        self._contacts: dict[NodeId, Contact] = {}

    def believes(self, report: Report, now: float) -> bool:
        """Whether a report is news: of this term, from the agent's latest start, and not older than one we had."""
        if (report.generation, report.term) != (self.generation, self.term):
            return False
        contact = self._contacts.get(report.node)
        if contact is None:
            contact = self._contacts[report.node] = Contact(report.session)
        if report.session != contact.session:
            if report.session in contact.retired:
                return False
            contact.retired = [*contact.retired, contact.session][-SESSIONS_REMEMBERED:]
            contact.session, contact.sequence, contact.took_sequence = report.session, -1, 0
        if report.sequence <= contact.sequence:
            return False
        contact.sequence = report.sequence
        contact.heard_at, contact.silent = now, False
        contact.took_sequence = report.wanted_sequence
        return True

    def said(self, node: NodeId, sequence: int, now: float) -> None:
        contact = self._contacts.get(node)
        if contact is not None:
            contact.said_sequence, contact.said_at = sequence, now

    def fallen_silent(self, now: float) -> list[NodeId]:
        """Nodes not heard for too long; each is named once per silence."""
        found = []
        for node, contact in self._contacts.items():
            if not contact.silent and now - contact.heard_at > self.suspect_after_s:
                contact.silent = True
                found.append(node)
        return found

    def to_repeat(self, now: float) -> list[NodeId]:
        """Nodes in touch whose last report does not yet reflect what was last said to them."""
        return [
            node
            for node, contact in self._contacts.items()
            if not contact.silent
            and contact.took_sequence < contact.said_sequence
            and now - contact.said_at >= self.repeat_after_s
        ]
