"""How fast a pool of 1,000 nodes with 8 slots each is planned while 10,000 tasks wait.

    python benchmarks/scheduling.py [--nodes 1000] [--waiting 10000] [--rounds 5]

Mixed shapes (1, 2, 4, 8 slots on one node; gangs of 16 to 64 slots over nodes), five priorities, fifty users, gangs and
preemption on. Prints for each scenario the quietest, the median and the worst of several rounds, and the ratio of the
median to the bar. Times are CPU time of this process: planning does no I/O, so on an idle core that is the wall time.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from random import Random
from statistics import median

import msgspec

from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.plan import Plan, plan
from clutch.core.scheduling.quota import QuotaBook
from clutch.wire.ids import NodeId, PoolName, RequestId, TaskId
from clutch.wire.resources import CUDA, Capacity, Resources, Slot
from clutch.wire.schedule import Holding, Part, Request, Room
from clutch.wire.specs import FairSharePolicy, Members, PoolSpec, PriorityPolicy, Quota, Split

FULL_PASS_S = 0.100
ONE_EVENT_S = 0.005
PLACEMENTS_PER_S = 5000.0
SHAPES = [1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32, 64]
PRIORITIES = [10, 30, 42, 42, 42, 50, 70]


class Mill:
    """A pool and an endless stream of requests for it."""

    def __init__(self, nodes: int, seed: int, policy: PriorityPolicy | FairSharePolicy | None = None) -> None:
        self.random = Random(seed)
        book = QuotaBook()
        for user in range(5):
            book.set_limit(Quota(f"user:u{user}", nodes))
        self.ledger = Ledger(PoolSpec(PoolName("bench"), policy or PriorityPolicy()), book)
        capacity = Capacity(tuple(Slot(i, CUDA) for i in range(8)), 128_000, 2**40)
        for number in range(nodes):
            self.ledger.put_room(Room(NodeId(f"node-{number:04d}"), capacity))
        self.order = 0
        self.now = 1_000_000.0

    def request(self, priorities: list[int] = PRIORITIES, shapes: list[int] = SHAPES) -> Request:
        slots = self.random.choice(shapes)
        shape: Members | Split
        if slots <= 8:
            shape = Members(1, Resources(slots, CUDA, 4000 * slots, slots << 33))
        elif self.random.random() < 0.5:
            shape = Members(slots // 8, Resources(8, CUDA, 32_000, 8 << 33))
        else:
            shape = Split(slots, CUDA, 4000, 1 << 33)
        self.order += 1
        return Request(
            request=RequestId(f"r{self.order:06d}"),
            task=TaskId(f"r{self.order:06d}"),
            order=self.order,
            parts=(Part("worker", shape),),
            owner=f"u{self.random.randrange(50)}",
            workspace=f"w{self.random.randrange(10)}",
            priority=self.random.choice(priorities),
            preemptible=self.random.random() < 0.8,
            group=f"g{self.random.randrange(40)}",
        )

    def queue(self, count: int, priorities: list[int] = PRIORITIES) -> None:
        for _ in range(count):
            self.ledger.enqueue(self.request(priorities))

    def apply(self, made: Plan) -> None:
        for grant in made.grants:
            request = self.ledger.waiting[grant.request]
            self.ledger.hold(
                Holding(request=request, placements=grant.placements, since=self.now, backfilled=grant.backfilled)
            )
        for preemption in made.preemptions:
            self.ledger.mark(preemption.victim, leaving=True, leaving_for=preemption.beneficiary)

    def settle(self) -> int:
        """Plan until nothing more happens, victims leaving at once; how many passes it took."""
        passes = 0
        while True:
            made = plan(self.ledger, self.now)
            passes += 1
            self.apply(made)
            left = [name for name, holding in self.ledger.holdings.items() if holding.leaving]
            for name in left:
                request = self.ledger.holdings[name].request
                self.ledger.release(name)
                self.ledger.enqueue(request)
            if not made.grants and not left:
                return passes


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    start = time.process_time()
    work()
    taken = time.process_time() - start
    gc.enable()
    return taken


def report(name: str, times: list[float], bar: float, note: str = "") -> None:
    best, middle, worst = min(times), median(times), max(times)
    print(
        f"{name:44} best {best * 1e3:7.2f}   median {middle * 1e3:7.2f}   worst {worst * 1e3:7.2f} ms   "
        f"bar {bar * 1e3:5.0f} ms   {bar / middle:6.2f}x{note}"
    )


def full_pass(nodes: int, waiting: int, rounds: int) -> None:
    times, counts = [], []
    for seed in range(rounds):
        mill = Mill(nodes, seed)
        mill.queue(waiting)
        made: list[Plan] = []
        times.append(timed(lambda: made.append(plan(mill.ledger, mill.now))))  # noqa: B023
        counts.append(len(made[0].grants))
    report("full pass, empty pool", times, FULL_PASS_S, f"   {median(counts):.0f} grants")


def preempting_pass(nodes: int, waiting: int, rounds: int) -> None:
    times, counts = [], []
    for seed in range(rounds):
        mill = Mill(nodes, seed)
        mill.queue(waiting, [90])
        mill.apply(plan(mill.ledger, mill.now))
        for name in list(mill.ledger.waiting):
            mill.ledger.withdraw(name)
        mill.queue(waiting)
        mill.now += 3600
        made: list[Plan] = []
        times.append(timed(lambda: made.append(plan(mill.ledger, mill.now))))  # noqa: B023
        counts.append(len(made[0].preemptions))
    report("full pass, pool full of less important work", times, FULL_PASS_S, f"   {median(counts):.0f} victims")


def steady_pass(nodes: int, waiting: int, rounds: int) -> None:
    mill = Mill(nodes, 7)
    mill.queue(waiting)
    mill.settle()
    mill.queue(waiting - len(mill.ledger.waiting))
    mill.now += 3600
    passes = mill.settle()
    mill.queue(waiting - len(mill.ledger.waiting))
    lines = len(mill.ledger.lines.lines)
    times = [timed(lambda: plan(mill.ledger, mill.now)) for _ in range(rounds)]
    report("full pass, settled full pool", times, FULL_PASS_S, f"   {lines} lines, settled in {passes} passes")
    times = []
    for _ in range(rounds * 20):
        times.append(timed(lambda: one_event(mill)))
    report("one event: a task ends or comes", times, ONE_EVENT_S)
    asked = plan(mill.ledger, mill.now)
    times = [timed(lambda: asked.why(next(reversed(mill.ledger.waiting)))) for _ in range(rounds)]
    report("the first why of a plan", times, ONE_EVENT_S)


def many_lines(nodes: int, waiting: int, rounds: int) -> None:
    """The worst case for the queue: no two requests alike, since each excludes a node of its own."""
    mill = Mill(nodes, 13)
    mill.queue(waiting)
    mill.settle()
    mill.now += 3600
    for name in list(mill.ledger.waiting):
        mill.ledger.withdraw(name)
    for number in range(waiting):
        node = NodeId(f"node-{number % nodes:04d}")
        mill.ledger.enqueue(msgspec.structs.replace(mill.request(), excluded_nodes=(node,)))
    lines = len(mill.ledger.lines.lines)
    times = [timed(lambda: plan(mill.ledger, mill.now)) for _ in range(rounds)]
    report("full pass, full pool, requests all different", times, FULL_PASS_S, f"   {lines} lines")


def full_quotas(nodes: int, waiting: int, rounds: int) -> None:
    """All users have a long queue and as much as their quotas allow."""
    mill = Mill(nodes, 17)
    for user in range(50):
        mill.ledger.quotas.set_limit(Quota(f"user:u{user}", 100))
    mill.queue(waiting)
    mill.settle()
    mill.now += 3600
    times = [timed(lambda: one_event(mill)) for _ in range(rounds * 20)]
    report("one event, quotas of all users full", times, ONE_EVENT_S, f"   {len(mill.ledger.waiting)} waiting")


def fair_share(nodes: int, waiting: int, rounds: int) -> None:
    times, counts = [], []
    for seed in range(rounds):
        mill = Mill(nodes, seed, FairSharePolicy())
        mill.queue(waiting)
        made: list[Plan] = []
        times.append(timed(lambda: made.append(plan(mill.ledger, mill.now))))  # noqa: B023
        counts.append(len(made[0].grants))
    report("full pass, fair share, empty pool", times, FULL_PASS_S, f"   {median(counts):.0f} grants")
    mill.settle()
    times = [timed(lambda: plan(mill.ledger, mill.now)) for _ in range(rounds)]
    report("full pass, fair share, settled", times, FULL_PASS_S)


def one_event(mill: Mill) -> None:
    """A task ends, or one comes; the ledger follows and the pool is planned and the plan applied."""
    if mill.random.random() < 0.5:
        names = mill.ledger.holdings
        name = mill.random.choice(list(names))
        mill.ledger.release(name)
    else:
        mill.ledger.enqueue(mill.request())
    mill.now += 1.0
    mill.apply(plan(mill.ledger, mill.now))


def churn(nodes: int, seconds: float, batch: int) -> None:
    """Submit, plan, hold, release, over and over, with all ledger work counted."""
    mill = Mill(nodes, 11)
    mill.queue(2 * batch)
    held: list[RequestId] = []
    placed = passes = 0
    start = time.process_time()
    while time.process_time() - start < seconds:
        made = plan(mill.ledger, mill.now)
        mill.apply(made)
        placed += len(made.grants)
        passes += 1
        mill.now += 1.0
        held.extend(grant.request for grant in made.grants)
        gone, held = held[: max(len(held) - 4 * batch, batch)], held[max(len(held) - 4 * batch, batch) :]
        for name in gone:
            if name in mill.ledger.holdings:
                mill.ledger.release(name)
        mill.queue(2 * batch - len(mill.ledger.waiting))
    taken = time.process_time() - start
    rate = placed / taken
    print(
        f"{'churn: submit, plan, hold, release':44} {rate:8.0f} placements/s over {passes} passes   "
        f"bar {PLACEMENTS_PER_S:.0f}   {rate / PLACEMENTS_PER_S:6.2f}x the bar"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.nodes} nodes x 8 slots, {options.waiting} waiting")
    full_pass(options.nodes, options.waiting, options.rounds)
    preempting_pass(options.nodes, options.waiting, options.rounds)
    steady_pass(options.nodes, options.waiting, options.rounds)
    many_lines(options.nodes, options.waiting, options.rounds)
    full_quotas(options.nodes, options.waiting, options.rounds)
    fair_share(options.nodes, options.waiting, options.rounds)
    churn(options.nodes, 5.0, 200)


if __name__ == "__main__":
    main()
