"""Where the ranks of a group meet, and by which keys they know each other.

The chief listens at one of ``ports``; the others try all of them. Only a process that proves the chief's key is taken
for the chief, so a stranger on one of the ports does no harm. Only processes with a key of ``allowed`` may connect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from clutch.backends.transports.keys import KeyPair, check_key
from clutch.runtime.distributed.shape import Seat
from clutch.runtime.info import inherited
from clutch.runtime.rendezvous import LOOPBACK, chief_address
from clutch.wire.errors import BadRequest
from clutch.wire.push import Roster

MEET_WITHIN_S = 600.0
HEARTBEAT_S = 0.4
DEAD_AFTER_S = 2.2
_NO_KEYS = "Start it under a cluster, use Group.from_torch, or give every rank the same CLUTCH_SECRET_KEY."


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of one group find each other. The same for all of them, but for ``keys``."""

    address: str = LOOPBACK
    """How everybody reaches the chief."""
    ports: tuple[int, ...] = ()
    """Where the chief may listen, the best first. None: any free port, which ``publish`` must tell the others."""
    keys: KeyPair
    """This rank's own. Ranks may share a pair."""
    chief_key: str = ""
    """Empty: the same as our own."""
    allowed: frozenset[str] = frozenset()
    """Public keys that may connect. Empty: only our own."""
    within_s: float = MEET_WITHIN_S
    publish: Callable[[int], None] | None = None
    """Called on the chief with its port, once it listens."""
    heartbeat_s: float = HEARTBEAT_S
    dead_after_s: float = DEAD_AFTER_S
    """A rank that is not heard for so long is lost. It is heard also while its program computes."""

    @property
    def server_key(self) -> str:
        return self.chief_key or self.keys.public

    @property
    def may_connect(self) -> frozenset[str]:
        return self.allowed | {self.keys.public, self.server_key}


def check_meeting(meeting: Meeting) -> None:
    check_key(meeting.keys.public, "the public key of this rank")
    check_key(meeting.keys.secret, "the secret key of this rank")
    check_key(meeting.server_key, "the chief's public key")
    for key in meeting.allowed:
        check_key(key, "an allowed public key")
    for port in meeting.ports:
        if not 0 < port < 1 << 16:
            raise BadRequest(f"{port} is no port", object="meeting")


def pair_of(secret_key: str) -> KeyPair:
    """The pair that this secret key belongs to."""
    import zmq

    check_key(secret_key, "secret key")
    return KeyPair(zmq.curve_public(secret_key.encode()).decode(), secret_key)


def pair_from(secret: str) -> KeyPair:
    """A pair for all who know this secret, such as the token of a member whose processes speak among themselves."""
    import zmq
    from zmq.utils import z85

    if not secret:
        raise BadRequest("an empty secret is none", object="group")
    raw = hashlib.sha256(b"clutch group\0" + secret.encode()).digest()
    key = z85.encode(raw)
    return KeyPair(zmq.curve_public(key).decode(), key.decode())


def meeting_by_roster(roster: Roster, secret_key: str, *, within_s: float = MEET_WITHIN_S) -> Meeting:
    """At the chief's reserved ports, by the keys that rendezvous has exchanged."""
    chief = roster.chief
    if not chief.ports:
        raise BadRequest("the chief has no reserved port", object="roster", next_step="Announce one at rendezvous.")
    return Meeting(
        address=chief_address(roster),
        ports=chief.ports,
        keys=pair_of(secret_key),
        chief_key=chief.public_key,
        allowed=frozenset(peer.public_key for peer in roster.peers),
        within_s=within_s,
    )


def by_environment(environment: Mapping[str, str] | None = None) -> tuple[Seat, Meeting | None]:
    """Seat and meeting as a launcher and boot have written them; no meeting for a rank that is alone.

    ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` say who it is, ``CLUTCH_COMMS_ADDRESS`` and
    ``CLUTCH_COMMS_PORT`` where the chief is (else the roster does), ``CLUTCH_ROSTER_FILE`` and ``CLUTCH_SECRET_KEY``
    whom to trust. Processes of one member without a roster trust whoever knows their member's token.
    """
    found = inherited() if environment is None else environment
    rank, size = _whole(found, "RANK", 0), _whole(found, "WORLD_SIZE", 1)
    local_rank, local_size = _whole(found, "LOCAL_RANK", 0), _whole(found, "LOCAL_WORLD_SIZE", 1)
    if size == 1:
        return Seat(rank, size, local_rank, local_size), None
    roster = _roster(found.get("CLUTCH_ROSTER_FILE", ""))
    node = ""
    if roster is not None and len(roster.peers) > 1:
        counts_members = (rank, size) == (roster.rank, roster.size)
        node = roster.peers[rank].node if counts_members else f"member {roster.rank}"
    seat = Seat(rank, size, local_rank, local_size, node)
    return seat, _meeting(found, roster)


def _meeting(found: Mapping[str, str], roster: Roster | None) -> Meeting:
    secret_key, token = found.get("CLUTCH_SECRET_KEY", ""), found.get("CLUTCH_TOKEN", "")
    if roster is not None and secret_key:
        meeting = meeting_by_roster(roster, secret_key)
    elif secret_key or (token and roster is None):
        keys = pair_of(secret_key) if secret_key else pair_from(token)
        meeting = Meeting(address=found.get("CLUTCH_CHIEF_ADDRESS", "") or LOOPBACK, keys=keys)
    else:
        raise BadRequest("there are no keys for its ranks to know each other by", object="group", next_step=_NO_KEYS)
    address, port = found.get("CLUTCH_COMMS_ADDRESS", ""), _whole(found, "CLUTCH_COMMS_PORT", 0)
    meeting = msgspec.structs.replace(
        meeting, address=address or meeting.address, ports=(port,) if port else meeting.ports
    )
    if not meeting.ports:
        raise BadRequest("the chief's port is not known", object="group", next_step="Set CLUTCH_COMMS_PORT.")
    return meeting


def _roster(path: str) -> Roster | None:
    if not path:
        return None
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Roster)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadRequest(f"it cannot be read: {error}", object=f"roster {path}") from error


def _whole(found: Mapping[str, str], name: str, otherwise: int) -> int:
    said = found.get(name, "")
    if not said:
        return otherwise
    if not said.isascii() or not said.isdecimal() or len(said) > 9:
        raise BadRequest(f"{said[:80]!a} is not a whole number", object=f"environment variable {name}")
    return int(said)
