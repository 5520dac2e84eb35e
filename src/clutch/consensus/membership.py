"""Changes of who is in the group, asked of a leader, one at a time.

Pure functions over ``State``. A change is one entry with the whole next configuration; it rules from the moment it is
in a member's log. The next change waits until this one is committed, by a leader of the term it leads in.
"""

from __future__ import annotations

from clutch.consensus import configuration as configurations
from clutch.consensus import replication
from clutch.consensus.state import Role, State
from clutch.wire.errors import Conflict, NotFound, NotLeader, Unavailable
from clutch.wire.raft import Address, Configuration, Entry, EntryKind, RaftId


def require_leader(s: State) -> None:
    if s.role is not Role.LEADER:
        leader = str(s.leader) if s.leader else ""
        raise NotLeader("another member leads" if leader else "no leader is known", leader=leader, object=str(s.me))


def add_learner(s: State, address: Address) -> int:
    require_leader(s)
    return _change(s, configurations.add_learner(s.log.configuration, address))


def promote(s: State, member: RaftId) -> int:
    """Make a learner a voter, once it has nearly everything: a voter that is far behind would cost availability."""
    require_leader(s)
    following = s.log.configuration
    proposed = configurations.promote(following, member)
    behind = s.log.last_index - s.progress[member].match
    if behind > s.limits.promote_lag or s.progress[member].match == 0:
        raise Unavailable(
            f"the learner is {behind} entries behind", object=str(member), next_step="Ask again when it has caught up."
        )
    return _change(s, proposed)


def remove(s: State, member: RaftId) -> int:
    require_leader(s)
    return _change(s, configurations.remove(s.log.configuration, member))


def transfer(s: State, target: RaftId) -> None:
    """Begin to hand leadership over. Proposals are refused until it is done or an election timeout has passed."""
    require_leader(s)
    if target == s.me:
        raise Conflict("it leads already", object=str(target))
    if target not in s.log.configuration.voters:
        raise NotFound("no such voter in the group", object=str(target))
    if s.transfer_to is not None and s.transfer_to != target:
        raise Conflict(f"leadership is being handed to {s.transfer_to}", object=str(s.me))
    s.transfer_to = target
    s.elapsed = 0
    replication.hand_over(s, target, s.progress[target])


def leave_if_removed(s: State) -> bool:
    """Whether a leader's own removal is committed: then it says farewell and must step down."""
    if s.role is not Role.LEADER or s.is_voter or s.log.configuration_index > s.log.commit:
        return False
    replication.farewell(s)
    return True


def _change(s: State, proposed: Configuration) -> int:
    log = s.log
    if s.transfer_to is not None:
        raise Unavailable("leadership is being handed over", object=str(s.me))
    if not s.rules.may_change(max(log.configuration_index, s.change_after), log.commit, log.term(log.commit), s.term):
        raise Conflict(
            "another change of the group is not committed yet", object=str(s.me), next_step="Ask again in a moment."
        )
    index = log.last_index + 1
    replication.append(s, [Entry(index, s.term, EntryKind.CONFIGURATION, configurations.encode(proposed))])
    return index
