"""The rules that make raft safe, one method each, and nothing else.

Everything else in this package is about speed, order and disks; a change here is a change of the algorithm. The core
asks these questions and never answers them itself, so a test can put a wrong answer in their place and see whether the
seeded world notices (``clutch.testing.raft_mutants``).

Names in brackets are sections of Ongaro's thesis.
"""

from __future__ import annotations

from clutch.wire.raft import RaftId, VoteRequest


class Rules:
    """The safe answers."""

    def quorum(self, voters: int) -> int:
        """How many of ``voters`` decide: any two such sets share a member. [3.2]"""
        return voters // 2 + 1

    def may_vote(self, vote: RaftId | None, leader: RaftId | None, request: VoteRequest) -> bool:
        """One vote a term, and none against a leader known in it. [3.4]"""
        return vote == request.sender or (vote is None and leader is None)

    def is_up_to_date(self, last: tuple[int, int], candidate_last: tuple[int, int]) -> bool:
        """A candidate's (last term, last index) must be at least the voter's. [3.6.1]"""
        return candidate_last >= last

    def matches(self, own_term: int | None, prev_term: int) -> bool:
        """An append is taken only if the entry before it is the same one. [3.5]"""
        return own_term == prev_term

    def may_commit(self, entry_term: int | None, term: int) -> bool:
        """Counting commits only entries of the leader's own term; older ones come with them. [3.6.2, figure 3.7]"""
        return entry_term == term

    def own_match(self, stable_index: int, last_index: int) -> int:
        """A leader counts itself only for what its own disk holds. [10.2.1]"""
        return stable_index

    def may_send_before_persist(self, durable_term: int, term: int) -> bool:
        """A leader's messages say nothing its disk must know first, once its term and vote are durable. [10.2.1]"""
        return durable_term == term

    def may_read(self, commit_term: int | None, term: int) -> bool:
        """A leader knows what is committed only after an entry of its own term is. [6.4]"""
        return commit_term == term

    def read_confirmed(self, acknowledged: int, needed: int) -> bool:
        """A read waits until a quorum has said that this is still the leader. [6.4]"""
        return acknowledged >= needed

    def may_change(self, configuration_index: int, commit: int, commit_term: int | None, term: int) -> bool:
        """One change at a time, and only by a leader that has committed in its own term. [4.1, and its erratum]"""
        return configuration_index <= commit and commit_term == term
