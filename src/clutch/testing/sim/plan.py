"""What a seed means: how large the cluster is, what work comes, and what goes wrong when."""

from __future__ import annotations

from enum import StrEnum
from random import Random

import msgspec

from clutch.testing.network import FAIR, FOUL, Weather
from clutch.testing.world import World


class FaultKind(StrEnum):
    MASTER_CRASH = "master crash"
    MASTER_STOP = "master stopped"
    AGENT_CRASH = "agent crash"
    REBOOT = "machine reboot"
    REIMAGE = "machine reimaged"
    SLOT_LOST = "slot lost"
    CUT_NODE = "node cut off"
    CUT_ONE_WAY = "one-way cut"
    CUT_MASTERS = "masters cut from the journal"
    DISK_FULL = "journal disk full"
    POWER_CUT = "power cut at the journal"


MASTER_FAULTS = (
    FaultKind.MASTER_CRASH,
    FaultKind.MASTER_STOP,
    FaultKind.DISK_FULL,
    FaultKind.CUT_MASTERS,
    FaultKind.POWER_CUT,
)


class Fault(msgspec.Struct, frozen=True):
    at_s: float
    kind: FaultKind
    target: int
    lasts_s: float


class SimPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is decided before the first step."""

    seed: int
    nodes: int
    slots: int
    masters: int
    faults: tuple[Fault, ...]
    weather: Weather
    work_s: float
    """For so long people submit work and things go wrong; then all is mended and everything must end well."""
    settle_s: float
    tasks: int
    fair_share: bool
    quotas: bool


def make_plan(seed: int, *, nodes: int | None = None, faults: bool = True, work_s: float = 90.0) -> SimPlan:
    """The plan of a seed. Equal arguments give equal plans."""
    chance = World(seed).chance("plan")
    count = nodes or chance.randint(2, 6)
    masters = chance.choice((1, 2, 2, 3))
    return SimPlan(
        seed=seed,
        nodes=count,
        slots=chance.choice((2, 4, 4, 8)),
        masters=masters,
        faults=_faults(chance, count, masters, work_s) if faults else (),
        weather=chance.choice((FAIR, FOUL, FOUL)) if faults else FAIR,
        work_s=work_s,
        settle_s=900.0,
        tasks=chance.randint(6, 18),
        fair_share=chance.random() < 0.25,
        quotas=chance.random() < 0.3,
    )


def _faults(chance: Random, nodes: int, masters: int, work_s: float) -> tuple[Fault, ...]:
    found = []
    for _ in range(chance.randint(3, 12)):
        kind = chance.choice(list(FaultKind))
        long = kind in (FaultKind.CUT_NODE, FaultKind.CUT_ONE_WAY)  # long enough for its work to go on elsewhere
        lasts = chance.choice((1.0, 8.0, 30.0, 45.0) if long else (0.2, 1.0, 3.0, 8.0, 30.0))
        target = chance.randrange(masters if kind in MASTER_FAULTS else nodes)
        found.append(Fault(chance.uniform(3.0, work_s), kind, target, lasts))
    return tuple(sorted(found, key=lambda fault: fault.at_s))
