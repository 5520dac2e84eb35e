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
    LAUNCH_FAILS = "launches fail"
    LAUNCH_SLOW = "launches are slow"
    NEVER_REPORTS = "machine never reports"
    VANISHES = "machine vanishes"


MASTER_FAULTS = (
    FaultKind.MASTER_CRASH,
    FaultKind.MASTER_STOP,
    FaultKind.DISK_FULL,
    FaultKind.CUT_MASTERS,
    FaultKind.POWER_CUT,
)

MACHINE_FAULTS = (FaultKind.LAUNCH_FAILS, FaultKind.LAUNCH_SLOW, FaultKind.NEVER_REPORTS, FaultKind.VANISHES)
"""Only where machines come from a provider."""

LONG = (FaultKind.CUT_NODE, FaultKind.CUT_ONE_WAY, FaultKind.AGENT_CRASH)
"""They may last long enough for the node's work to go on elsewhere, while its old copy still runs."""


class Fault(msgspec.Struct, frozen=True):
    at_s: float
    kind: FaultKind
    target: int
    lasts_s: float


class MachinesPlan(msgspec.Struct, frozen=True):
    """The pool's nodes come from a provider, apart from the first few."""

    static: int
    nodes_min: int
    nodes_max: int
    idle_s: float
    starting_s: float
    disconnected_s: float


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
    machines: MachinesPlan | None = None
    experiments: int = 0
    borrowers: int = 0
    """Searches of somebody's own that begin from what those experiments have saved."""

    @property
    def static_nodes(self) -> int:
        return self.nodes if self.machines is None else self.machines.static


def make_plan(seed: int, *, nodes: int | None = None, faults: bool = True, work_s: float = 90.0) -> SimPlan:
    """The plan of a seed. Equal arguments give equal plans."""
    chance = World(seed).chance("plan")
    count = nodes or chance.randint(2, 6)
    masters = chance.choice((1, 2, 2, 3))
    machines = _machines(World(seed).chance("plan-machines"), count)
    experiments = World(seed).chance("plan-experiments").choice((0, 0, 0, 1))
    found = _faults(chance, count, masters, work_s) if faults else ()
    if faults and machines is not None:
        found += _machine_faults(World(seed).chance("plan-machine-faults"), work_s)
    return SimPlan(
        seed=seed,
        nodes=count,
        slots=chance.choice((2, 4, 4, 8)),
        masters=masters,
        faults=tuple(sorted(found, key=lambda fault: fault.at_s)),
        weather=chance.choice((FAIR, FOUL, FOUL)) if faults else FAIR,
        work_s=work_s,
        settle_s=900.0,
        tasks=chance.randint(6, 18),
        fair_share=chance.random() < 0.25,
        quotas=chance.random() < 0.3,
        machines=machines,
        experiments=experiments,
        borrowers=experiments,
    )


def _faults(chance: Random, nodes: int, masters: int, work_s: float) -> tuple[Fault, ...]:
    found = []
    for _ in range(chance.randint(3, 12)):
        kind = chance.choice([kind for kind in FaultKind if kind not in MACHINE_FAULTS])
        lasts = chance.choice((1.0, 8.0, 30.0, 45.0) if kind in LONG else (0.2, 1.0, 3.0, 8.0, 30.0))
        target = chance.randrange(masters if kind in MASTER_FAULTS else nodes)
        found.append(Fault(chance.uniform(3.0, work_s), kind, target, lasts))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _machines(chance: Random, nodes: int) -> MachinesPlan | None:
    """Two seeds of five have a provider; the pool can grow at least to the size the work was made for."""
    if chance.random() >= 0.4:
        return None
    static = chance.choice((0, 0, 1))
    return MachinesPlan(
        static=static,
        nodes_min=chance.choice((0, 0, 1, 2)),
        nodes_max=max(2, nodes - static) + chance.choice((0, 0, 1)),
        idle_s=chance.choice((2.0, 5.0, 15.0)),
        starting_s=chance.choice((12.0, 25.0)),
        disconnected_s=chance.choice((5.0, 20.0)),
    )


def _machine_faults(chance: Random, work_s: float) -> tuple[Fault, ...]:
    found = []
    for _ in range(chance.randint(1, 5)):
        kind = chance.choice(MACHINE_FAULTS)
        found.append(Fault(chance.uniform(1.0, work_s), kind, 0, chance.choice((1.0, 5.0, 15.0))))
    return tuple(found)
