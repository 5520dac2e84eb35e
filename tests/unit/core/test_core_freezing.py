"""Snapshots that cannot be read: too new, or not one. (That good ones come back is the walks' business.)"""

from __future__ import annotations

import msgspec
import pytest
from house import House, session_spec, trial_spec

from clutch.core.freezing import VERSION, freeze, thaw
from clutch.wire.errors import Corrupt, TooNew
from clutch.wire.ids import NodeId


def test_a_newer_snapshot_is_too_new() -> None:
    snapshot = msgspec.structs.replace(freeze(House().state), version=VERSION + 1)
    with pytest.raises(TooNew) as caught:
        thaw(snapshot, {})
    assert f"snapshot at {snapshot.index}" == caught.value.object


def test_damage_is_corrupt_wherever_it_is() -> None:
    house = House().nodes(2)
    house.running(trial_spec("t"))
    snapshot = freeze(house.state)
    corrupt = 0
    for spot in range(0, len(snapshot.payload), 7):
        payload = snapshot.payload[:spot] + b"\xc1" + snapshot.payload[spot + 1 :]
        try:
            thaw(msgspec.structs.replace(snapshot, payload=payload), {})
        except Corrupt as error:
            assert "restore" in error.next_step
            corrupt += 1
        except KeyError:
            pass  # a name was damaged into another name: the checksum of the store is what catches that
    assert corrupt > 20
    for payload in (b"", b"\x80", snapshot.payload[:-1]):
        with pytest.raises(Corrupt):
            thaw(msgspec.structs.replace(snapshot, payload=payload), {})


def test_what_is_held_in_a_room_that_has_shrunk_comes_through_a_snapshot() -> None:
    """A node lost a slot, and with it room for subscriptions: what was granted before is still held (seed 883)."""
    house = House().nodes(2)
    for name in ("a", "b", "c", "d"):
        house.running(session_spec(name, replicas=1, slots=2))
    node = house.state.nodes[NodeId("n0")]
    smaller = msgspec.structs.replace(node.capacity, slots=node.capacity.slots[:1], millicpus=1)
    house.machines[NodeId("n0")].brain.capacity = smaller
    house.beat("n0")
    assert house.state.nodes[NodeId("n0")].capacity.millicpus == 1
    again = thaw(freeze(house.state), house.controllers)
    assert freeze(again).payload == freeze(house.state).payload
    for ledger in again.ledgers.values():
        ledger.check()
