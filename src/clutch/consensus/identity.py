"""Whose folder this is, and whom this member has met.

A folder is made for one raft id and draws a **birth** when it is made. Every message carries its sender's birth, and
each member remembers, on disk, the first birth it saw for an id. A second node with the same id (an emptied folder, a
copy on another machine) has another birth and is refused with Conflict: it cannot vote, and cannot be counted, in the
name of the first.
"""

from __future__ import annotations

import zlib

import msgspec

from clutch.consensus.files import Files
from clutch.consensus.wal import LogIdentity
from clutch.wire.errors import Conflict, Corrupt, NotAllowed, Stale
from clutch.wire.raft import Header, RaftId

IDENTITY = "identity"
ACQUAINTANCES = "acquaintances"
_ASIDE = "identity.tmp"
REFUSALS = (NotAllowed, Stale, Conflict)
"""Verdicts about a sender, which hold for good. Any other error is about this member's own disk, now."""


def save(files: Files, name: str, payload: bytes) -> None:
    """Write a small checksummed file, at once and durably."""
    files.create(_ASIDE, 0)
    files.write(_ASIDE, 0, zlib.crc32(payload).to_bytes(4, "little") + payload)
    files.sync(_ASIDE)
    files.rename(_ASIDE, name)


def load(files: Files, name: str) -> bytes:
    data = files.read(name)
    if len(data) < 4 or zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
        raise Corrupt("the file fails its checksum", object=name)
    return data[4:]


class IdentityFile(msgspec.Struct, frozen=True):
    """``complete`` is False while the folder is being made: nothing in it was ever promised to anyone."""

    identity: LogIdentity
    complete: bool


def read_identity(files: Files, group: str, me: RaftId) -> LogIdentity | None:
    """The folder's identity, or None if it is new or was never finished. Raises when it belongs to somebody else."""
    names = files.names()
    if IDENTITY not in names:
        if any(n.endswith((".wal", ".snap")) for n in names):
            raise Corrupt("there is a log, but the file that says whose it is is gone", object=IDENTITY)
        return None
    stored = msgspec.msgpack.decode(load(files, IDENTITY), type=IdentityFile)
    found = stored.identity
    if not stored.complete:
        for name in names:
            files.remove(name)
        return None
    if found.group != group:
        raise NotAllowed(f"the folder is of group {found.group}, not of {group}", object="identity")
    if found.me != me:
        raise Stale(f"the folder is of {found.me}, not of {me}", object="identity", next_step="Use a new folder.")
    return found


def write_identity(files: Files, identity: LogIdentity, *, complete: bool) -> None:
    save(files, IDENTITY, msgspec.msgpack.encode(IdentityFile(identity, complete)))


class Acquaintances:
    """The births this member has seen, one for each id, kept on disk before they are believed."""

    def __init__(self, files: Files, group: str, generation: int) -> None:
        self._files = files
        self._group = group
        self._generation = generation
        self._births: dict[str, str] = {}
        if ACQUAINTANCES in files.names():
            self._births = msgspec.msgpack.decode(load(files, ACQUAINTANCES), type=dict[str, str])

    def admit(self, header: Header) -> None:
        """Return if this sender may speak. Raises one of REFUSALS if it may not; the disk may fail, too."""
        sender = header.sender
        if header.group != self._group:
            raise NotAllowed(f"it is of group {header.group}, not of {self._group}", object=str(sender))
        if sender.generation != self._generation:
            raise Stale(f"it is of generation {sender.generation}, not {self._generation}", object=str(sender))
        known = self._births.get(str(sender))
        if known is None:
            met = self._births | {str(sender): header.birth}
            save(self._files, ACQUAINTANCES, msgspec.msgpack.encode(met))
            self._births = met
        elif known != header.birth:
            raise Conflict(
                "another node with this id is known here",
                object=str(sender),
                next_step="Add it to the group as a learner under its next incarnation.",
            )
