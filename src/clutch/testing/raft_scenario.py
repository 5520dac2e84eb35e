"""Text scenarios for the pure core: a command a line, and below it what happened.

A scenario file is prose (lines starting with ``#``), commands (``> propose a hello``) and their transcript. Messages
wait on their way until a command lets them arrive, so a scenario says exactly who heard what, when.

    group a b c          voters; ``+d`` is a machine that is not in the group yet
    campaign a           a's patience ends now            tick a 3           three ticks of a's clock
    deliver [a b]        let messages arrive until it is quiet (from a to b: only those under way now)
    drop a b             lose what is under way from a to b
    cut a b / mend       lose everything between a and b, both ways, until mended
    propose a text       crash a / restart a              snapshot a
    read a               add a d / promote a d / remove a d / transfer a d
    show                 one line for each member
"""

from __future__ import annotations

from random import Random

import msgspec

from clutch.consensus import configuration as configurations
from clutch.consensus.raft import Raft, Ready, Recovered
from clutch.consensus.rules import Rules
from clutch.consensus.state import Limits
from clutch.wire.errors import ClutchError
from clutch.wire.raft import (
    Address,
    Append,
    AppendReply,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    InstallSnapshot,
    RaftId,
    RaftMessage,
    ReadReply,
    SnapshotMeta,
    VoteReply,
    VoteRequest,
)

LIMITS = Limits(heartbeat_ticks=1, election_ticks=10, keep_entries=0, keep_bytes=0, max_append_bytes=1)


class Player:
    """One member and what its disk holds."""

    def __init__(self, name: str, configuration: Configuration, rules: Rules) -> None:
        self.id = RaftId(1, name, 1)
        self.rules = rules
        first = SnapshotMeta(0, 0, configuration)
        self.stored = Recovered(HardState(), first, first, [])
        self.raft: Raft | None = None
        self.start()

    def start(self) -> None:
        stored = msgspec.structs.replace(self.stored, entries=list(self.stored.entries))
        self.raft = Raft("scenario", self.id, stored, Random(self.id.member), LIMITS, self.rules)

    def persist(self, ready: Ready) -> None:
        stored = self.stored
        entries = list(stored.entries)
        if ready.snapshot is not None:
            stored = msgspec.structs.replace(stored, snapshot=ready.snapshot, base=ready.snapshot)
            entries = []
        if ready.entries:
            entries = [e for e in entries if e.index < ready.entries[0].index] + ready.entries
        self.stored = msgspec.structs.replace(stored, hard_state=ready.hard_state or stored.hard_state, entries=entries)


class Theatre:
    """Plays the commands of one scenario and writes the transcript."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.players: dict[str, Player] = {}
        self.under_way: list[RaftMessage] = []
        self.cuts: list[tuple[str, str]] = []
        self.transcript: list[str] = []
        self._roles: dict[str, tuple[str, int]] = {}
        self._contexts = 0

    def play(self, command: str) -> list[str]:
        """The transcript of one command."""
        self.transcript = []
        verb, *words = command.split()
        try:
            getattr(self, f"_do_{verb}")(*words)
        except ClutchError as error:
            self.transcript.append(f"{error.code}: {error}")
        return self.transcript or ["(nothing)"]

    # ------------------------------------------------------------------------------------------- commands

    def _do_group(self, *names: str) -> None:
        voters = [n for n in names if not n.startswith("+")]
        first = configurations.first(Address(RaftId(1, n, 1)) for n in voters)
        for name in names:
            configuration = Configuration() if name.startswith("+") else first
            self.players[name.lstrip("+")] = Player(name.lstrip("+"), configuration, self.rules)

    def _do_campaign(self, name: str) -> None:
        raft = self._raft(name)
        raft.state.elapsed = raft.state.timeout
        raft.tick()
        self._settle(name)

    def _do_tick(self, name: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self._raft(name).tick()
            self._settle(name)

    def _do_deliver(self, sender: str = "", receiver: str = "") -> None:
        if sender:
            now = [m for m in self.under_way if self._between(m, sender, receiver)]
            self.under_way = [m for m in self.under_way if not self._between(m, sender, receiver)]
            for message in now:
                self._arrive(message)
            return
        for _ in range(1000):
            if not self.under_way:
                break
            self._arrive(self.under_way.pop(0))

    def _do_drop(self, sender: str, receiver: str) -> None:
        lost = [m for m in self.under_way if self._between(m, sender, receiver)]
        self.under_way = [m for m in self.under_way if not self._between(m, sender, receiver)]
        self.transcript.extend(f"lost  {describe(m)}" for m in lost)

    def _do_cut(self, one: str, other: str) -> None:
        self.cuts += [(one, other), (other, one)]
        self.under_way = [m for m in self.under_way if not self._is_cut(m)]

    def _do_mend(self) -> None:
        self.cuts = []

    def _do_propose(self, name: str, text: str) -> None:
        index = self._raft(name).propose(text.encode(), text)
        self.transcript.append(f"{name} proposes {text} at {index}")
        self._settle(name)

    def _do_read(self, name: str) -> None:
        self._contexts += 1
        self._raft(name).read(self._contexts)
        self._settle(name)

    def _do_add(self, name: str, other: str) -> None:
        self._raft(name).add_learner(Address(RaftId(1, other, 1)))
        self._settle(name)

    def _do_promote(self, name: str, other: str) -> None:
        self._raft(name).promote(RaftId(1, other, 1))
        self._settle(name)

    def _do_remove(self, name: str, other: str) -> None:
        self._raft(name).remove(RaftId(1, other, 1))
        self._settle(name)

    def _do_transfer(self, name: str, other: str) -> None:
        self._raft(name).transfer(RaftId(1, other, 1))
        self._settle(name)

    def _do_crash(self, name: str) -> None:
        self.players[name].raft = None

    def _do_restart(self, name: str) -> None:
        self.players[name].start()
        self._settle(name)

    def _do_snapshot(self, name: str) -> None:
        player = self.players[name]
        raft = self._raft(name)
        log = raft.state.log
        meta = SnapshotMeta(log.applied, log.term(log.applied) or 0, log.configuration_at(log.applied))
        base = raft.compact(meta)
        kept = [e for e in player.stored.entries if e.index > base.index]
        player.stored = msgspec.structs.replace(player.stored, snapshot=meta, base=base, entries=kept)
        self.transcript.append(f"{name} has a snapshot of {meta.index}, its log begins after {base.index}")

    def _do_show(self) -> None:
        for name, player in self.players.items():
            if player.raft is None:
                self.transcript.append(f"{name}  down")
                continue
            state = player.raft.state
            log = state.log
            terms = " ".join(f"{e.index}/{e.term}" for e in log.entries[-6:])
            role = f"{state.role.value:13}"
            self.transcript.append(
                f"{name}  {role} term {state.term}  commit {log.commit}  applied {log.applied}  [{terms}]"
            )

    # --------------------------------------------------------------------------------------------- inside

    def _raft(self, name: str) -> Raft:
        raft = self.players[name].raft
        assert raft is not None, f"{name} is down"
        return raft

    def _between(self, m: RaftMessage, sender: str, receiver: str) -> bool:
        return m.sender.member == sender and m.receiver.member == receiver

    def _is_cut(self, m: RaftMessage) -> bool:
        return (m.sender.member, m.receiver.member) in self.cuts

    def _arrive(self, message: RaftMessage) -> None:
        receiver = self.players.get(message.receiver.member)
        if receiver is None or receiver.raft is None or self._is_cut(message):
            self.transcript.append(f"lost  {describe(message)}")
            return
        self.transcript.append(f"      {describe(message)}")
        receiver.raft.step(message)
        self._settle(message.receiver.member)

    def _settle(self, name: str) -> None:
        """Do what the member asks for, in the order of the contract."""
        player = self.players[name]
        raft = self._raft(name)
        while (ready := raft.ready()) is not None:
            self._send(ready.early)
            player.persist(ready)
            self._send(ready.late)
            self._note_role(name, raft)
            if ready.snapshot is not None:
                self.transcript.append(f"{name} restores the snapshot of {ready.snapshot.index}")
            for entry in ready.committed:
                self.transcript.append(f"{name} applies {describe_entry(entry)}")
            for read in ready.reads:
                self.transcript.append(f"{name} may serve read {read.context} at {read.index}")
            for context in ready.reads_failed:
                self.transcript.append(f"{name} cannot serve read {context}")
            for peer, meta in ready.snapshots_wanted:
                s = raft.state
                self._send([InstallSnapshot(s.group, s.me, peer, s.term, meta)])
            raft.advance(ready)
        self._note_role(name, raft)

    def _note_role(self, name: str, raft: Raft) -> None:
        now = (raft.state.role.value, raft.state.term)
        if self._roles.get(name, ("follower", 0)) != now:
            self._roles[name] = now
            self.transcript.append(f"{name} is {now[0]} in term {now[1]}: {raft.state.why}")

    def _send(self, messages: list[RaftMessage]) -> None:
        self.under_way.extend(m for m in messages if not self._is_cut(m))


def describe_entry(entry: Entry) -> str:
    if entry.kind == EntryKind.CONFIGURATION:
        found = configurations.decode(entry.data)
        voters = ",".join(v.member for v in found.voters)
        learners = ",".join(v.member for v in found.learners)
        return f"{entry.index}/{entry.term} voters {voters}" + (f" learners {learners}" if learners else "")
    return f"{entry.index}/{entry.term} {entry.data.decode() or 'noop'}"


def describe(m: RaftMessage) -> str:
    """A message in one line."""
    details = ""
    if isinstance(m, VoteRequest):
        details = f"last {m.last_index}/{m.last_term}" + (" pre" if m.pre else "") + (" transfer" if m.transfer else "")
    elif isinstance(m, VoteReply):
        details = ("granted" if m.granted else "refused") + (" pre" if m.pre else "")
    elif isinstance(m, Append):
        entries = ", ".join(describe_entry(e) for e in m.entries)
        details = f"after {m.prev_index}/{m.prev_term} [{entries}] commit {m.commit}"
    elif isinstance(m, AppendReply):
        details = f"rejected at {m.index}, try {m.hint_index}/{m.hint_term}" if m.rejected else f"has {m.index}"
    elif isinstance(m, Heartbeat):
        details = f"commit {m.commit}" + (f" read {m.read}" if m.read else "")
    elif isinstance(m, ReadReply):
        details = f"read {m.context} at {m.index}"
    elif isinstance(m, InstallSnapshot):
        details = f"snapshot {m.snapshot.index}/{m.snapshot.term}"
    return f"{m.sender.member} -> {m.receiver.member}  {type(m).__name__} t{m.term} {details}".rstrip()


def perform(text: str, rules: Rules | None = None) -> str:
    """The scenario with its transcript as it happens now."""
    theatre = Theatre(rules)
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *(f"    {t}".rstrip() for t in theatre.play(line[2:])), ""]
        elif line.startswith("#"):
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"
