"""How the cluster moves on: terms, pools, quotas and nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core import node as nodes
from clutch.core.deadlines import Due
from clutch.core.folds.indexes import (
    put_node,
)
from clutch.core.folds.machines import node_joined, node_left
from clutch.core.node import Node
from clutch.core.recorded import Recorded
from clutch.core.scheduling.ledger import Ledger
from clutch.core.state import State
from clutch.wire import facts as f
from clutch.wire.outcomes import NodeState, NodeWish

replace = msgspec.structs.replace


def _term_began(state: State, fact: f.TermBegan, recorded: Recorded) -> None:
    state.generation, state.term, state.term_index = fact.generation, fact.term, recorded.index
    for node in list(state.nodes.values()):
        state.deadlines.clear(Due.RESIDENTS, node.node)
        if node.state is NodeState.LOST:
            continue
        nodes.TABLE.move(node.state, NodeState.UNREPORTED, f"node {node.node}")
        node = replace(node, state=NodeState.UNREPORTED, since=recorded.at, strays=())
        put_node(state, node)
        wait_for(state, node)


def _pool_put(state: State, fact: f.PoolPut, recorded: Recorded) -> None:
    state.pools[fact.pool.name] = fact.pool
    ledger = state.ledgers.get(fact.pool.name)
    if ledger is None:
        state.ledgers[fact.pool.name] = Ledger(fact.pool, state.quota_book)
    else:
        ledger.reconfigure(fact.pool)
    for node in state.nodes.values():
        if node.pool == fact.pool.name:
            wait_for(state, node)
    state.touched.pools[fact.pool.name] = None


def _quota_set(state: State, fact: f.QuotaSet, recorded: Recorded) -> None:
    state.quotas[fact.quota.scope] = fact.quota
    state.quota_book.set_limit(fact.quota)
    for pool in state.pools:
        state.touched.pools[pool] = None


def _quota_removed(state: State, fact: f.QuotaRemoved, recorded: Recorded) -> None:
    del state.quotas[fact.scope]
    state.quota_book.clear_limit(fact.scope)
    for pool in state.pools:
        state.touched.pools[pool] = None


def _node_reported(state: State, fact: f.NodeReported, recorded: Recorded) -> None:
    known = state.nodes.get(fact.node)
    wish = known.wish if known else NodeWish.OPEN
    to = nodes.state_after_report(wish, fact.strays)
    if known is None:
        node = Node(
            node=fact.node,
            pool=fact.pool,
            state=to,
            session=fact.session,
            capacity=fact.capacity,
            since=recorded.at,
            strays=fact.strays,
        )
    else:
        capacity, missing = state.on_the_books(known, fact.capacity)
        there = [slot.index for slot in capacity.slots]
        disabled = tuple(slot for slot in known.disabled if slot in there)
        node = replace(nodes.moved(known, to, recorded.at), session=fact.session, strays=fact.strays)
        node = replace(node, capacity=capacity, missing=missing, disabled=disabled)
    state.deadlines.clear(Due.SILENCE, fact.node)
    state.deadlines.clear(Due.RESIDENTS, fact.node)
    put_node(state, node)
    node_joined(state, fact.node, recorded)


def _node_suspected(state: State, fact: f.NodeSuspected, recorded: Recorded) -> None:
    node = replace(nodes.moved(state.nodes[fact.node], NodeState.SUSPECT, recorded.at), residents=True)
    put_node(state, node)
    wait_for(state, node)


def wait_for(state: State, node: Node) -> None:
    """How long a silent node is waited for: its pool's patience, counted from when it fell silent."""
    pool = state.pools[node.pool]
    if node.state is NodeState.SUSPECT or (node.state is NodeState.UNREPORTED and not node.strays):
        state.deadlines.set(Due.SILENCE, node.node, node.since + pool.node_lost_after_s)
    if node.state is NodeState.SUSPECT and node.residents:
        state.deadlines.set(Due.RESIDENTS, node.node, node.since + pool.resident_lost_after_s)


def _node_lost(state: State, fact: f.NodeLost, recorded: Recorded) -> None:
    state.deadlines.clear(Due.SILENCE, fact.node)
    state.deadlines.clear(Due.RESIDENTS, fact.node)
    put_node(state, nodes.moved(state.nodes[fact.node], NodeState.LOST, recorded.at))


def _residents_lost(state: State, fact: f.ResidentsLost, recorded: Recorded) -> None:
    state.deadlines.clear(Due.RESIDENTS, fact.node)
    put_node(state, replace(state.nodes[fact.node], residents=False))


def _node_wished(state: State, fact: f.NodeWished, recorded: Recorded) -> None:
    node = replace(state.nodes[fact.node], wish=fact.wish)
    if node.state in nodes.HEARD:
        node = nodes.moved(node, nodes.state_after_report(fact.wish, ()), recorded.at)
    put_node(state, node)


def _slots_disabled(state: State, fact: f.SlotsDisabled, recorded: Recorded) -> None:
    put_node(state, replace(state.nodes[fact.node], disabled=fact.slots))


def _node_removed(state: State, fact: f.NodeRemoved, recorded: Recorded) -> None:
    node = state.nodes.pop(fact.node)
    state.deadlines.clear(Due.SILENCE, fact.node)
    state.deadlines.clear(Due.RESIDENTS, fact.node)
    state.ledgers[node.pool].drop_room(fact.node)
    state.touched.nodes.pop(fact.node, None)
    state.touched.removed_nodes[fact.node] = None
    state.touched.pools[node.pool] = None
    node_left(state, fact.node, recorded)


HANDLERS: dict[type[f.Fact], Callable[[State, Any, Recorded], None]] = {
    f.TermBegan: _term_began,
    f.PoolPut: _pool_put,
    f.QuotaSet: _quota_set,
    f.QuotaRemoved: _quota_removed,
    f.NodeReported: _node_reported,
    f.NodeSuspected: _node_suspected,
    f.NodeLost: _node_lost,
    f.ResidentsLost: _residents_lost,
    f.NodeWished: _node_wished,
    f.SlotsDisabled: _slots_disabled,
    f.NodeRemoved: _node_removed,
}
