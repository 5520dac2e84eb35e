"""Who counts: quorums over a configuration, and the one-at-a-time changes of it.

Pure. A change is a function from one configuration to the next that differs by at most one voter, so that any quorum
of the old and any of the new share a member. A raft id that was ever in the group is never added again: the
configuration remembers the highest incarnation of each member name.

The path of a new member, and the only one::

    (absent) --add_learner--> learner --promote--> voter --remove--> (absent, never again under this id)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from clutch.wire.errors import BadRequest, Conflict, NotFound, Stale
from clutch.wire.raft import Address, Configuration, RaftId, Retired

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Configuration)


def encode(configuration: Configuration) -> bytes:
    return _encoder.encode(configuration)


def decode(data: bytes) -> Configuration:
    return _decoder.decode(data)


def first(voters: Iterable[Address]) -> Configuration:
    """The configuration a group is born with."""
    addresses = tuple(sorted(voters))
    ids = tuple(a.id for a in addresses)
    if not ids:
        raise BadRequest("a group needs at least one voter", object="configuration")
    if len({i.member for i in ids}) != len(ids) or len({i.generation for i in ids}) != 1:
        raise BadRequest("voters must have different names and one generation", object="configuration")
    highest = tuple(Retired(i.member, i.incarnation) for i in ids)
    return Configuration(ids, (), addresses, highest)


def committed_index(matches: list[int], quorum: int) -> int:
    """The highest index that at least ``quorum`` of the voters hold."""
    return sorted(matches, reverse=True)[quorum - 1]


def election_result(votes: Mapping[RaftId, bool], voters: tuple[RaftId, ...], quorum: int) -> bool | None:
    """Won, lost, or not yet known."""
    granted = sum(1 for v in voters if votes.get(v) is True)
    refused = sum(1 for v in voters if votes.get(v) is False)
    if granted >= quorum:
        return True
    if len(voters) - refused < quorum:
        return False
    return None


def add_learner(now: Configuration, address: Address) -> Configuration:
    """With one more learner, whose id must be new to the group."""
    joining = address.id
    if now.voters and joining.generation != now.voters[0].generation:
        raise Stale(f"{joining} is of another generation than the group", object=str(joining))
    for known in now.highest:
        if known.member == joining.member and joining.incarnation <= known.incarnation:
            raise Stale(
                f"incarnation {joining.incarnation} of {joining.member} was used before",
                object=str(joining),
                next_step=f"Start it with an empty folder as incarnation {known.incarnation + 1}.",
            )
    highest = {r.member: r.incarnation for r in now.highest} | {joining.member: joining.incarnation}
    return msgspec.structs.replace(
        now,
        learners=tuple(sorted((*now.learners, joining))),
        addresses=tuple(sorted((*now.addresses, address))),
        highest=tuple(Retired(m, highest[m]) for m in sorted(highest)),
    )


def promote(now: Configuration, member: RaftId) -> Configuration:
    """With a learner made a voter."""
    if member in now.voters:
        raise Conflict("it votes already", object=str(member))
    if member not in now.learners:
        raise NotFound("no such learner in the group", object=str(member), next_step="Add it as a learner first.")
    return msgspec.structs.replace(
        now,
        voters=tuple(sorted((*now.voters, member))),
        learners=tuple(i for i in now.learners if i != member),
    )


def remove(now: Configuration, member: RaftId) -> Configuration:
    """Without a member. The last voter cannot be removed."""
    if member not in now.voters and member not in now.learners:
        raise NotFound("no such member in the group", object=str(member))
    voters = tuple(i for i in now.voters if i != member)
    if not voters:
        raise Conflict("the last voter cannot be removed", object=str(member), next_step="End the group instead.")
    return msgspec.structs.replace(
        now,
        voters=voters,
        learners=tuple(i for i in now.learners if i != member),
        addresses=tuple(a for a in now.addresses if a.id != member),
    )
