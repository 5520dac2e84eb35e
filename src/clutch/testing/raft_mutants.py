"""Rafts that are wrong on purpose, each in one way. The seeded world must notice every one of them.

A mutant is a subclass of ``Rules`` or ``Member``, or a machine whose disk lies; production code has no switch for it.
``MUTANTS`` maps a name to how a world is made with it.
"""

from __future__ import annotations

from collections.abc import Callable

from clutch.consensus.member import Member
from clutch.consensus.proposals import Done
from clutch.consensus.raft import Ready
from clutch.consensus.requests import Requests
from clutch.consensus.rules import Rules
from clutch.consensus.state import Role
from clutch.testing.raft_world import RaftWorld
from clutch.wire.raft import RaftId, SnapshotMeta, VoteRequest


class VotesTwice(Rules):
    """Forgets whom it voted for in this term."""

    def may_vote(self, vote: RaftId | None, leader: RaftId | None, request: VoteRequest) -> bool:
        return leader is None


class CommitsOlderTerms(Rules):
    """Counts copies of an older term's entry: figure 3.7 of the thesis, figure 8 of the paper."""

    def may_commit(self, entry_term: int | None, term: int) -> bool:
        return True


class VotesForAnyone(Rules):
    """Elects a candidate whose log lacks what this voter holds."""

    def is_up_to_date(self, last: tuple[int, int], candidate_last: tuple[int, int]) -> bool:
        return True


class SkipsTheMatch(Rules):
    """Takes entries after one that it does not have."""

    def matches(self, own_term: int | None, prev_term: int) -> bool:
        return own_term is not None


class CountsHalf(Rules):
    """Half of the voters is called a quorum."""

    def quorum(self, voters: int) -> int:
        return max(1, voters // 2)


class CountsItselfEarly(Rules):
    """A leader counts itself before its disk has the entry."""

    def own_match(self, stable_index: int, last_index: int) -> int:
        return last_index


class ReadsAtOnce(Rules):
    """A leader serves reads without asking whether it still leads."""

    def read_confirmed(self, acknowledged: int, needed: int) -> bool:
        return True


class ReadsBeforeCommit(Rules):
    """A new leader serves reads before it knows what is committed."""

    def may_read(self, commit_term: int | None, term: int) -> bool:
        return True


class ChangesAtWill(Rules):
    """Begins a change of members before the last one is committed."""

    def may_change(self, configuration_index: int, commit: int, commit_term: int | None, term: int) -> bool:
        return True


class AnswersBeforePersist(Member):
    """Sends its votes and acceptances while the disk still works."""

    def _persist(self, ready: Ready) -> None:
        self._send(ready.late)
        ready.late.clear()
        super()._persist(ready)


class EarlyAcknowledgements(Requests):
    def append(self, key: str, data: bytes, since: int, timeout_ticks: int, done: Done) -> None:
        super().append(key, data, since, timeout_ticks, done)
        if key in self.waits.appends and self._raft.state.role is Role.LEADER:
            done(self._raft.state.log.last_index)


class AcknowledgesProposals(Member):
    """Tells the client when the entry is in the leader's log, not when it is committed."""

    requests_type = EarlyAcknowledgements


class ForgetsKeys(Member):
    """Applies every entry, repeated or not."""

    def _load_keys(self, snapshot: SnapshotMeta) -> None:
        super()._load_keys(snapshot)
        self.requests.keys.take = lambda entry: entry.index  # type: ignore[method-assign]


def lying_disks(world: RaftWorld) -> None:
    """Every sync returns at once and does nothing."""
    for machine in world.machines.values():
        machine.files.syncs_lie = True


def _with_rules(rules: type[Rules]) -> Callable[[int], RaftWorld]:
    return lambda seed: RaftWorld(seed, rules=rules())


def _with_member(member: type[Member]) -> Callable[[int], RaftWorld]:
    return lambda seed: RaftWorld(seed, member_type=member)


MUTANTS: dict[str, Callable[[int], RaftWorld]] = {
    "skips fsync": lambda seed: RaftWorld(seed, prepare=lying_disks),
    "votes twice": _with_rules(VotesTwice),
    "commits older terms by counting": _with_rules(CommitsOlderTerms),
    "votes for anyone": _with_rules(VotesForAnyone),
    "skips the match": _with_rules(SkipsTheMatch),
    "counts half as a quorum": _with_rules(CountsHalf),
    "counts itself early": _with_rules(CountsItselfEarly),
    "reads at once": _with_rules(ReadsAtOnce),
    "reads before its commit": _with_rules(ReadsBeforeCommit),
    "changes members at will": _with_rules(ChangesAtWill),
    "answers before persist": _with_member(AnswersBeforePersist),
    "acknowledges proposals": _with_member(AcknowledgesProposals),
    "forgets keys": _with_member(ForgetsKeys),
}
