"""Run a seed: let its day happen, mend everything, and see that it ends well."""

from __future__ import annotations

import hashlib
import traceback

import msgspec

from clutch.backends.journal.memory import MemoryJournal
from clutch.backends.journal.opening import open_journal
from clutch.core import story
from clutch.core.recorded import Recorded
from clutch.testing.sim.cluster import Cluster, Kit
from clutch.testing.sim.plan import SimPlan, make_plan
from clutch.testing.sim.promises import PromiseBroken
from clutch.wire.errors import NotFound


class Outcome(msgspec.Struct, frozen=True):
    """What came of a seed. ``broken`` is empty when every promise held."""

    seed: int
    steps: int
    virtual_s: float
    facts: int
    tasks: int
    checks: int
    terms: int
    faults: dict[str, int]
    digest: str
    """Of the whole journal: the same seed gives the same one, on any machine."""
    options: str = ""
    """What else was asked for, as the command line says it."""
    broken: str = ""
    story: tuple[str, ...] = ()


STEPS_MAX = 3_000_000


def run(seed: int, *, nodes: int | None = None, faults: bool = True, kit: type[Kit] = Kit) -> Outcome:
    """The outcome of a seed; a broken promise is in it, with the story of what it happened to."""
    outcome = run_plan(make_plan(seed, nodes=nodes, faults=faults), kit)
    asked = [f"--nodes {nodes}"] if nodes else []
    options = " ".join(asked if faults else [*asked, "--no-faults"])
    return msgspec.structs.replace(outcome, options=options)


def run_plan(plan: SimPlan, kit: type[Kit] = Kit) -> Outcome:
    return lived(plan, kit)[1]


def lived(plan: SimPlan, kit: type[Kit] = Kit) -> tuple[Cluster, Outcome]:
    """A cluster at its end, for whoever wants to look at more than the outcome."""
    cluster = Cluster(plan, kit)
    broken = ""
    subject = ""
    try:
        live(cluster)
    except PromiseBroken as error:
        broken, subject = str(error), error.subject
    except Exception as error:  # whatever else escapes is a bug of ours, and belongs to the seed
        broken = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    finally:
        cluster.close()
    return cluster, _outcome(cluster, broken, subject)


def live(cluster: Cluster) -> None:
    world, plan = cluster.world, cluster.plan
    start = world.now
    advance(cluster, start + plan.work_s)
    cluster.mend_everything()
    deadline = start + plan.work_s + plan.settle_s
    while world.now < deadline and not at_rest(cluster):
        cluster.people.wind_up()
        advance(cluster, world.now + 5.0)
    cluster.promises.settled()
    _raise(cluster)


def advance(cluster: Cluster, when: float) -> None:
    world = cluster.world
    while True:
        due = world.next_at()
        if due is None or due > when:
            break
        world.step()
        _raise(cluster)
        if world.steps > STEPS_MAX:
            raise PromiseBroken("P3", f"no rest after {STEPS_MAX} steps", "master")
    world.now = max(world.now, when)


def _raise(cluster: Cluster) -> None:
    if cluster.promises.broken is not None:
        raise cluster.promises.broken


def at_rest(cluster: Cluster) -> bool:
    state = cluster.truth.state
    quiet = not state.tasks and not any(machine.in_use() for machine in cluster.machines.values())
    promised = cluster.machine_promises.at_rest() and cluster.experiment_promises.at_rest()
    return quiet and not state.workloads and promised


def _outcome(cluster: Cluster, broken: str, subject: str) -> Outcome:
    digest = hashlib.sha256()
    for recorded in cluster.truth.history:
        digest.update(story.line(recorded).encode())
    told = story.story(cluster.truth.history, subject)[-60:] if subject else []
    return Outcome(
        seed=cluster.plan.seed,
        steps=cluster.world.steps,
        virtual_s=cluster.world.now - 1_000_000.0,
        facts=len(cluster.truth.history),
        tasks=len(cluster.truth.submitted),
        checks=cluster.promises.checks,
        terms=cluster.truth.state.term,
        faults={str(kind): count for kind, count in cluster.fired.items()},
        digest=digest.hexdigest(),
        broken=broken,
        story=tuple(told),
    )


def tell(seed: int, subject: str, *, nodes: int | None = None, faults: bool = True) -> list[str]:
    """The story of one thing in a seed."""
    cluster = Cluster(make_plan(seed, nodes=nodes, faults=faults))
    ending = ""
    try:
        live(cluster)
    except PromiseBroken as error:
        ending = str(error)
    finally:
        cluster.close()
    lines = story_of(cluster.truth.history, subject)
    return [*lines, ending] if ending else lines


async def save(seed: int, url: str, *, nodes: int | None = None, faults: bool = True) -> None:
    """Let a seed happen and put its journal, as its masters left it, into an empty one at ``url``."""
    cluster = Cluster(make_plan(seed, nodes=nodes, faults=faults))
    try:
        live(cluster)
    finally:
        cluster.close()
    target = await open_journal(url)
    try:
        async with MemoryJournal(cluster.store).export() as (origin, chunks):
            await target.adopt(origin, [chunk async for chunk in chunks])
    finally:
        await target.close()


def story_of(history: list[Recorded], subject: str) -> list[str]:
    """The story of one thing. ``NotFound`` names what else has one."""
    lines = story.story(history, subject)
    if not lines:
        known = list(dict.fromkeys(name for recorded in history for name in story.subjects(recorded.fact)))
        near = [name for name in known if subject.partition("-")[0] in name] or known
        raise NotFound(
            "nothing of this name happened there", object=repr(subject), next_step=f"Try: {', '.join(near[:12])}."
        )
    return lines
