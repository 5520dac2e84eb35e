"""Max-min fair shares by weight: how many slots each group should have. Numbers in, numbers out.

Slots are whole, so they are given one at a time, each to the group that would have least per weight with it. What a
group holds and cannot be made to give back counts first. A group whose smallest piece of work is larger than its share
could do nothing with it: the youngest such group is set aside and its share goes to the others, until the rest can run.
A group that could not run anything even if it had all there is does not take part.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass
class Group:
    """One group's claim on one kind of slot."""

    name: str
    weight: float
    age: int
    """The order of its oldest work: a lower number is older."""
    demand: int
    """What it holds and waits for, no more than its cap."""
    fixed: int = 0
    """What it holds and cannot be made to give back."""
    smallest: int = 0
    """The slots of its smallest piece of preemptible or waiting work; 0: none."""


def fill(groups: list[Group], slots: int) -> dict[str, int]:
    """Slots by group: fixed parts first, then one at a time to whoever has least per weight, up to its demand."""
    shares = {group.name: group.fixed for group in groups}
    left = slots - sum(shares.values())
    heap = [
        ((group.fixed + 1) / group.weight, group.age, group.name, group)
        for group in groups
        if group.demand > group.fixed
    ]
    heapq.heapify(heap)
    while heap and left > 0:
        _, age, name, group = heap[0]
        share = shares[name] = shares[name] + 1
        left -= 1
        if share < group.demand:
            heapq.heapreplace(heap, ((share + 1) / group.weight, age, name, group))
        else:
            heapq.heappop(heap)
    return shares


def fair_shares(groups: list[Group], slots: int) -> dict[str, int]:
    """Shares with which every group that has one can run something."""
    fixed = sum(group.fixed for group in groups)
    active = [g for g in groups if g.smallest <= slots - fixed and g.fixed + g.smallest <= g.demand]
    while True:
        shares = fill([*active, *_set_aside(groups, active)], slots)
        stuck = [g for g in active if g.smallest and shares[g.name] < g.fixed + g.smallest]
        if not stuck:
            return shares
        youngest = max(stuck, key=lambda group: (group.age, group.name))
        active = [group for group in active if group is not youngest]


def _set_aside(groups: list[Group], active: list[Group]) -> list[Group]:
    """The others, with a claim to no more than what they cannot give back."""
    kept = dict.fromkeys(group.name for group in active)
    return [
        Group(group.name, group.weight, group.age, group.fixed, group.fixed)
        for group in groups
        if group.name not in kept
    ]
