"""How a member begins: from its own disk, or with a folder that is made for it.

No I/O but ``Files``. A folder is made so that a crash in the middle leaves either nothing or something that is known to
be unfinished: its identity is written first as incomplete, then the log, then the identity as complete. A member is
made from a whole, readable log or not at all.
"""

from __future__ import annotations

from random import Random

import msgspec

from clutch.consensus import identity, snapshots
from clutch.consensus.files import Files
from clutch.consensus.keys import WindowState
from clutch.consensus.raft import Recovered
from clutch.consensus.rules import Rules
from clutch.consensus.snapshots import SnapshotHead
from clutch.consensus.state import Limits
from clutch.consensus.wal import LogIdentity, Wal
from clutch.wire.raft import Configuration, RaftId, SnapshotMeta


class Founding(msgspec.Struct, frozen=True):
    """How a new folder begins. Without voters it waits to be added as a learner; with a snapshot, a group that lost
    its majority begins again from it, under the next generation."""

    birth: str
    configuration: Configuration = Configuration()
    snapshot_index: int = 0
    snapshot_term: int = 0
    snapshot_body: bytes = b""
    snapshot_keys: WindowState = WindowState()


class Nature(msgspec.Struct, frozen=True):
    """What makes members differ: their limits, their chance, and (in tests only) their rules."""

    limits: Limits
    chance: Random
    rules: Rules


class OpenLog(msgspec.Struct, frozen=True):
    """A member's disk, read and whole."""

    identity: LogIdentity
    wal: Wal
    recovered: Recovered
    files: Files


def open_log(files: Files, group: str, me: RaftId, founding: Founding, limits: Limits) -> OpenLog:
    """The log in this folder, made first if the folder is new. Raises Corrupt, TooNew, NotAllowed, Stale, DiskFull."""
    known = identity.read_identity(files, group, me)
    if known is not None:
        wal, recovered = Wal.open(files, known, limits)
        return OpenLog(known, wal, recovered, files)
    made = LogIdentity(group, me, founding.birth)
    identity.write_identity(files, made, complete=False)
    meta = SnapshotMeta(founding.snapshot_index, founding.snapshot_term, founding.configuration)
    if meta.index:
        snapshots.write(files, SnapshotHead(meta, founding.snapshot_keys), [founding.snapshot_body])
    wal, recovered = Wal.create(files, made, meta, limits)
    identity.write_identity(files, made, complete=True)
    return OpenLog(made, wal, recovered, files)
