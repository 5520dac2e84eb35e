"""Reads that see everything acknowledged before them, without a clock and without an entry in the log.

Pure functions over ``State``. A leader notes its commit index, asks a quorum whether it still leads, and only then says
that the read may be served at that index. Reads that arrive together share one round of heartbeats.
"""

from __future__ import annotations

from clutch.consensus import replication
from clutch.consensus.state import ReadState, Role, State
from clutch.wire.raft import RaftId, ReadReply, ReadRequest


def ask(s: State, context: int) -> None:
    """A read for this member's own client."""
    if s.role is Role.LEADER:
        request(s, s.me, context)
    elif s.leader is not None:
        s.send_early(ReadRequest(s.group, s.me, s.leader, s.term, context))
    else:
        s.reads_failed.append(context)


def request(s: State, asker: RaftId, context: int) -> None:
    """A read at the leader, for itself or for a follower."""
    if len(s.reads_confirming) + len(s.reads_waiting) >= s.limits.max_pending_reads:
        if asker == s.me:
            s.reads_failed.append(context)
        return
    if not s.rules.may_read(s.log.term(s.log.commit), s.term):
        s.reads_waiting.append((asker, context))
        return
    if not s.read_round_open:
        s.read_round += 1
        s.read_round_open = True
    s.reads_confirming.append((s.read_round, asker, context, s.log.commit))


def flush(s: State) -> None:
    """Let waiting reads in once the term has a commit, send the open round's heartbeats, serve what is confirmed."""
    if s.reads_waiting and s.rules.may_read(s.log.term(s.log.commit), s.term):
        waiting, s.reads_waiting = s.reads_waiting, []
        for asker, context in waiting:
            request(s, asker, context)
    if s.read_round_open:
        s.read_round_open = False
        replication.beat(s)
    if s.reads_confirming:
        _confirm(s)


def _confirm(s: State) -> None:
    voters = s.log.configuration.voters
    rounds = sorted((s.read_round if v == s.me else s.progress[v].read for v in voters), reverse=True)
    still: list[tuple[int, RaftId, int, int]] = []
    for read in s.reads_confirming:
        number, asker, context, index = read
        acknowledged = sum(1 for r in rounds if r >= number)
        if not s.rules.read_confirmed(acknowledged, s.quorum):
            still.append(read)
        elif asker == s.me:
            s.reads_ready.append(ReadState(context, index))
        else:
            s.send_early(ReadReply(s.group, s.me, asker, s.term, context, index))
    s.reads_confirming = still


def on_read_reply(s: State, m: ReadReply) -> None:
    s.reads_ready.append(ReadState(m.context, m.index))
