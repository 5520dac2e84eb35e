"""What is counted and measured of a master, in Prometheus' words. Few labels: never a task, a member or a user."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from clutch.core.scheduling.plan import Plan
from clutch.core.state import State
from clutch.master.loop import Loop, Turn
from clutch.wire.link import NodeUse
from clutch.wire.outcomes import NodeState, TaskState

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Traffic:
    """HTTP requests, by operation and kind of status; and what the loop's turns cost."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        labels = ["operation", "status"]
        self._requests = Counter("clutch_http_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = self._histogram("clutch_http_request_seconds", "Time to answer, streams included.")
        self._decide = self._histogram("clutch_decision_seconds", "Time one turn of the loop took to decide.")
        self._commit = self._histogram("clutch_commit_seconds", "Time one turn of the loop took to become durable.")
        self._facts = Counter("clutch_facts", "Facts written to the journal.", registry=self.registry)
        self._events = Counter("clutch_events", "Events the loop took in.", registry=self.registry)

    def _histogram(self, name: str, words: str) -> Histogram:
        return Histogram(name, words, buckets=SECONDS, registry=self.registry)

    def count(self, operation: str, status: int, took_s: float) -> None:
        """One request more. ``took_s`` 0: its time says nothing (a WebSocket)."""
        self._requests.labels(operation, f"{status // 100}xx").inc()
        if took_s:
            self._seconds.observe(took_s)

    def watch(self, loop: Loop) -> None:
        """Measure a loop's turns from now on."""
        loop.watchers.append(self._turned)

    def _turned(self, turn: Turn) -> None:
        self._decide.observe(turn.decide_s)
        self._events.inc(turn.events)
        if turn.facts:
            self._commit.observe(turn.commit_s)
            self._facts.inc(turn.facts)


class Scrape:
    """One look at a cluster. Each ``add_*`` takes what it measures; ``text`` is the answer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"clutch_{name}", words, labels, registry=self.registry)

    def add_state(self, state: State, plans: Iterable[tuple[str, Plan]]) -> None:
        """Nodes, slots, tasks and queues."""
        nodes = self._gauge("nodes", "Nodes by pool and state.", "pool", "state")
        slots = self._gauge("slots", "Slots by pool.", "pool", "kind")
        for pool in state.pools:
            for known in NodeState:
                nodes.labels(pool, known).set(0)
        for (pool, stands), number in Count((n.pool, str(n.state)) for n in state.nodes.values()).items():
            nodes.labels(pool, stands).set(number)
        kinds = Count((n.pool, slot.kind) for n in state.nodes.values() for slot in n.capacity.slots)
        for (pool, kind), number in kinds.items():
            slots.labels(pool, kind).set(number)
        held = self._gauge("slots_held", "Slots that somebody holds, by pool.", "pool")
        for name, taken in _held(state):
            held.labels(name).set(taken)
        tasks = self._gauge("tasks", "Live tasks by pool and state.", "pool", "state")
        for pool in state.pools:
            for alive in TaskState:
                if alive is not TaskState.ENDED:
                    tasks.labels(pool, alive).set(0)
        for (pool, stands), number in Count((t.spec.pool, str(t.state)) for t in state.tasks.values()).items():
            tasks.labels(pool, stands).set(number)
        waiting = self._gauge("queue_length", "Requests that wait for room, by pool.", "pool")
        for pool in state.pools:
            waiting.labels(pool).set(0)
        for planned, plan in plans:
            waiting.labels(planned).set(len(plan.line()))
        self._gauge("term", "Which mastership this is.").set(state.term)
        self._gauge("journal_index", "The last row of the journal.").set(state.index)

    def add_use(self, uses: Iterable[NodeUse]) -> None:
        """What agents measure, summed over each node: members are too many to be told apart."""
        cpu = self._gauge("node_cpu_percent", "CPU use of a node; 100 is one core.", "node")
        memory = self._gauge("node_memory_bytes", "Memory in use on a node.", "node")
        disk = self._gauge("node_disk_free_bytes", "Free disk where the agent keeps its files.", "node")
        devices = self._gauge("node_slot_percent", "Mean use of a node's devices.", "node")
        member_cpu = self._gauge("members_cpu_percent", "CPU use of all members on a node.", "node")
        member_memory = self._gauge("members_memory_bytes", "Memory of all members on a node.", "node")
        for use in uses:
            cpu.labels(use.node).set(use.cpu_percent)
            memory.labels(use.node).set(use.memory_bytes)
            disk.labels(use.node).set(use.disk_free_bytes)
            busy = [slot.percent for slot in use.slots if slot.percent >= 0]
            if busy:
                devices.labels(use.node).set(sum(busy) / len(busy))
            member_cpu.labels(use.node).set(sum(member.cpu_percent for member in use.members))
            member_memory.labels(use.node).set(sum(member.memory_bytes for member in use.members))

    def add_output(self, size_bytes: int) -> None:
        self._gauge("output_stored_bytes", "Output that is stored, compressed.").set(size_bytes)

    def text(self, traffic: Traffic) -> bytes:
        return generate_latest(self.registry) + generate_latest(traffic.registry)


def _held(state: State) -> Iterator[tuple[str, int]]:
    """Slots held, for each pool."""
    for pool, ledger in state.ledgers.items():
        placements = (p for holding in ledger.holdings.values() for p in holding.placements)
        yield pool, sum(len(placement.slots) for placement in placements)
