"""What a batch of facts owes to the outside, and what it settles: outbox items, in the same transaction as the facts.

An item waits exactly as long as the state says that it must: a launch while its machine is asked for and unanswered, a
termination while its machine is being stopped, what a workload owes until it is settled. So a master that starts needs
nothing but the items themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.wire import facts as f
from clutch.wire.journal import OutboxItem
from clutch.wire.machines import LAUNCH, TERMINATE, MachineId, Order, launch_token, terminate_token

_encoder = msgspec.msgpack.Encoder()


class Owed(NamedTuple):
    """``items`` begin to wait, ``delivered`` tokens wait no more."""

    items: tuple[OutboxItem, ...]
    delivered: tuple[str, ...]


def outbox(state: State, recorded: Iterable[Recorded]) -> Owed:
    """What these facts owe and settle, in the state after them."""
    items: list[OutboxItem] = []
    delivered: list[str] = []
    for entry in recorded:
        match entry.fact:
            case f.MachineAsked(machine, _, token):
                items += _item(state, LAUNCH, machine, token, entry.at)
            case f.MachineLaunched(machine):
                delivered.append(launch_token(machine))
            case f.MachineStopAsked(machine, _, token) | f.MachineFailed(machine, _, token):
                delivered.append(launch_token(machine))
                items += _item(state, TERMINATE, machine, token, entry.at)
            case f.MachineStray(machine, _, _, token):
                items += _item(state, TERMINATE, machine, token, entry.at)
            case f.EffectOwed(_, token, kind, payload, due_at):
                items.append(OutboxItem(token, kind, due_at, payload))
            case f.EffectSettled(token):
                delivered.append(token)
            case f.MachineGone(machine):
                delivered += [launch_token(machine), terminate_token(machine)]
    return Owed(tuple(items), tuple(delivered))


def _item(state: State, kind: str, machine: MachineId, token: str, at: float) -> list[OutboxItem]:
    known = state.machines.get(machine)
    if known is None:  # gone within the same batch
        return []
    return [OutboxItem(token, kind, at, _encoder.encode(Order(token, machine, known.pool, known.instance)))]
