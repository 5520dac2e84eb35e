"""A cluster whose nodes are machines of their own as far as the network goes, and gangs on it that are made to die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from clutch.sdk import calls, experiment_calls
from clutch.sdk.client import Client
from clutch.testing import gang_trial, namespaces
from clutch.testing.cluster import Cluster, until
from clutch.wire.api import TaskDetail
from clutch.wire.experiment_api import SubmitExperiment
from clutch.wire.experiment_views import ExperimentView, TrialView
from clutch.wire.ids import PoolName
from clutch.wire.output import OutputQuery
from clutch.wire.specs import PoolSpec
from clutch.wire.views import AllocationView

PROGRAM = Path(gang_trial.__file__)
LOST_AFTER_S = 1.0
"""So long after its last sign a node's members count as gone."""
WAIT_S = 60.0


class Begun(msgspec.Struct, frozen=True):
    """A rank as it has noted itself."""

    rank: int
    pid: int
    node: str
    step: int


class Left(msgspec.Struct, frozen=True):
    """Where and when a rank ended by itself."""

    rank: int
    step: int
    whole: bool
    at: float


class Gangs:
    """Nodes ``n0``, ``n1`` ... with so many slots each, every one behind a cable of its own; or without ``cables`` all
    on this machine's own network, which takes no root."""

    def __init__(
        self, folder: Path, *slots: int, cables: bool = True, lost_after_s: float = LOST_AFTER_S
    ) -> None:  # fmt: skip
        self.folder = folder
        self.lost_after_s = lost_after_s
        self.wants_cables = cables
        self.slots = slots
        self.cluster = Cluster(folder / "cluster")
        self.cables: dict[str, namespaces.Namespace] = {}
        self._stack = ExitStack()
        self._gangs = 0

    def __enter__(self) -> Gangs:
        with ExitStack() as stack:
            names = [f"n{number}" for number in range(len(self.slots))]
            if self.wants_cables:
                for number, name in enumerate(names):
                    self.cables[name] = stack.enter_context(namespaces.namespace(20 + number))
                    _connect(self.cables[name])
            stack.enter_context(self.cluster)
            if self.wants_cables:
                master = self.cluster.masters[0]
                master.arguments = (*master.arguments, "--host=0.0.0.0", "--insecure")
            self.cluster.start()
            pool = PoolSpec(name=PoolName("default"), node_lost_after_s=self.lost_after_s)
            self.cluster.client.perform(calls.put_pool(pool))
            for name, slots in zip(names, self.slots, strict=True):
                there = self.cables.get(name)
                masters = (f"http://{there.outside}:{self.cluster.ports[0]}",) if there else ()
                self.cluster.add_agent(name, slots, prefix=there.prefix if there else (), masters=masters)
            self.cluster.wait_nodes(*names)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def client(self) -> Client:
        return self.cluster.client

    def start(self, hparams: dict[str, Any], *, seed: int = 1, **more: Any) -> Gang:
        """A gang over all slots of all nodes."""
        self._gangs += 1
        marks = self.folder / f"marks{self._gangs}"
        marks.mkdir()
        config = {
            "name": "gang",
            "entrypoint": [sys.executable, str(PROGRAM)],
            "launch": "ranks",
            "hyperparameters": {"marks": str(marks), **hparams},
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": sum(self.slots)},
            "reproducibility": {"experiment_seed": seed},
            "environment": {"environment_variables": {"OPENBLAS_NUM_THREADS": "1"}},
            "max_restarts": 0,
            **more,
        }
        submitted = self.client.perform(experiment_calls.submit_experiment(SubmitExperiment(config=config)))
        return Gang(self, submitted.experiment, marks, sum(self.slots))

    def held(self) -> int:
        return sum(pool.slots_held for pool in self.client.perform(calls.list_pools()).items)


class Gang:
    """One trial on all ranks."""

    def __init__(self, ground: Gangs, experiment: str, marks: Path, size: int) -> None:
        self.ground = ground
        self.experiment = experiment
        self.task = f"{experiment}.1"
        self.marks = marks
        self.size = size

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def view(self) -> ExperimentView:
        return self.ground.client.perform(experiment_calls.get_experiment(self.experiment)).view

    @property
    def trial(self) -> TrialView:
        return self.ground.client.perform(experiment_calls.get_trial(self.task)).view

    @property
    def detail(self) -> TaskDetail:
        return self.ground.client.perform(calls.get_task(self.task))

    def allocation(self, epoch: int) -> AllocationView | None:
        return next((one for one in self.detail.allocations if one.epoch == epoch), None)

    def output(self) -> list[str]:
        return [line.text for line in self.ground.client.perform(calls.read_output(OutputQuery(task=self.task))).lines]

    def losses(self) -> list[tuple[int, Any]]:
        """Every step's loss, each once; and the last one validated."""
        call = experiment_calls.trial_metrics(
            self.task, group="training", name="loss", points=100_000, superseded=False
        )
        items = self.ground.client.perform(call).items
        found = sorted((point.step, point.value) for series in items for point in series.points)
        return [*found, (-1, self.trial.best)]

    def why(self) -> str:
        """What ``clutch experiment why`` says of it."""
        found = self.ground.client.perform(experiment_calls.why_experiment(self.experiment))
        return "\n".join([found.sentence, *found.story])

    def story(self) -> str:
        lines = [f"{one.epoch} {one.state} {one.exit} {one.nodes}: {one.detail}" for one in self.detail.allocations]
        return "\n".join([self.why(), *lines, *self.output()[-30:]])

    # -- waiting ---------------------------------------------------------------------------------------------------

    def until(self, look: Any, what: str, within_s: float = WAIT_S) -> Any:
        try:
            return until(look, what, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def begun(self, epoch: int) -> list[Begun]:
        """All ranks of a run, once all have begun."""

        def look() -> list[Begun] | None:
            found = []
            for path in self.marks.glob(f"{epoch}.*.begun"):
                pid, node, step = path.read_text().split()
                found.append(Begun(int(path.name.split(".")[1]), int(pid), node, int(step)))
            return sorted(found, key=lambda one: one.rank) if len(found) == self.size else None

        return list(self.until(look, f"all ranks of {self.task} have begun, epoch {epoch}"))

    def left(self, epoch: int) -> list[Left]:
        def look() -> list[Left] | None:
            found = []
            for path in self.marks.glob(f"{epoch}.*.left"):
                step, whole, at = path.read_text().split()
                found.append(Left(int(path.name.split(".")[1]), int(step), whole == "1", float(at)))
            return found if len(found) == self.size else None

        return list(self.until(look, f"all ranks of {self.task} have left, epoch {epoch}"))

    def next_epoch(self, epoch: int, within_s: float) -> int:
        """Of its next run, once it has slots again."""
        return int(self.until(lambda: max(self.trial.epoch - epoch, 0), "it begins again", within_s)) + epoch

    def over(self, epoch: int, within_s: float = WAIT_S) -> AllocationView:
        """The master has this run down as ended."""

        def look() -> AllocationView | None:
            found = self.allocation(epoch)
            return found if found is not None and found.ended_at else None

        found: AllocationView = self.until(look, f"the master knows that run {epoch} is over", within_s)
        return found

    def ended(self, state: str = "completed", within_s: float = WAIT_S) -> None:
        found = self.until(
            lambda: view if (view := self.view).ended_at else None, f"{self.experiment} is over", within_s
        )
        assert found.state == state, self.story()

    def move(self, move: str) -> None:
        self.ground.client.perform(experiment_calls.move_experiment(self.experiment, move))


# -- dying ---------------------------------------------------------------------------------------------------------


class Death(msgspec.Struct, frozen=True):
    """What was done to a gang, and how long it took from there."""

    kind: str
    victim: Begun
    processes_s: float
    """Until no rank was left on any node."""
    known_s: float
    """Until the master had the run down as ended."""
    member: str
    """Its member: a rank that was killed has one too."""
    detail: str


def kill(gang: Gang, epoch: int, kind: str, chance: random.Random) -> Death:
    """One rank, shim or supervisor is killed, or one node is cut off, at a random moment of a run's life; returns
    when the run is over. Cables are mended then."""
    ranks = gang.begun(epoch)
    victim = ranks[chance.randrange(len(ranks))]
    target = _target(victim.pid, kind)
    time.sleep(chance.random() * 0.8)  # the moment is the point; nothing is waited for
    assert all(alive(one.pid) for one in ranks), f"it died before it was killed\n{gang.story()}"
    at = time.monotonic()
    if kind == "node":
        gang.ground.cables[victim.node].cut()
    else:
        os.kill(target, signal.SIGKILL)
    gang.until(lambda: not any(alive(one.pid) for one in ranks), f"after a {kind} died all ranks are gone", 30)
    processes_s = time.monotonic() - at
    over = gang.over(epoch, 30)
    known_s = time.monotonic() - at
    if kind == "node":
        gang.ground.cables[victim.node].mend()
    member = f"/main.{over.nodes.split(',').index(victim.node)} "
    return Death(kind, victim, processes_s, known_s, member, over.detail)


def kill_early(gang: Gang, epoch: int, chance: random.Random) -> tuple[int, float]:
    """The first rank that is seen of a run is killed, before all have met. Which it was, and when."""

    def look() -> list[Begun] | None:
        return ranks_of(gang.task, PROGRAM.name) if gang.allocation(epoch) else None

    ranks = gang.until(look, f"a rank of run {epoch}")
    victim = ranks[chance.randrange(len(ranks))]
    os.kill(victim.pid, signal.SIGKILL)
    at = time.monotonic()
    assert not list(gang.marks.glob(f"{epoch}.*.begun")), "they had met already"
    return victim.rank, at


def named(death: Death, ranks: list[Begun]) -> bool:
    """Whether the reason says who it was: the rank, or, where a whole member died, it, its node or a rank of it."""
    those = [death.victim] if death.kind == "rank" else [one for one in ranks if one.node == death.victim.node]
    text = death.detail.replace(":", " ").replace(",", " ").replace(";", " ")
    if any(f"rank {one.rank} " in text for one in those):
        return True
    return death.kind != "rank" and (death.member in text or those[0].node in text)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _target(pid: int, kind: str) -> int:
    """The process to kill: of a rank itself, its launcher's supervisor, or the shim above that."""
    if kind in ("rank", "node"):
        return pid
    top = pid
    while "supervisor_main" in _command(_parent(top)):
        top = _parent(top)
    assert top != pid, f"no supervisor above {pid}"
    return top if kind == "supervisor" else _parent(top)


def ranks_of(task: str, program: str) -> list[Begun]:
    """The processes of a program that notes nothing, by what the kernel knows of them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            words, said = _command(pid).split(), environment_of(pid)
        except OSError:
            continue
        if len(words) > 1 and words[1].endswith(program) and said.get("CLUTCH_TASK") == task and "RANK" in said:
            found.append(Begun(int(said["RANK"]), pid, said["CLUTCH_NODE"], 0))
    return sorted(found, key=lambda one: one.rank)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _connect(there: namespaces.Namespace) -> None:
    """Nodes reach each other through this machine."""
    Path(f"/proc/sys/net/ipv4/conf/{there.cable}/forwarding").write_text("1")
    route = ["ip", "-n", there.name, "route", "add", "default", "via", there.outside]
    subprocess.run(route, check=True, capture_output=True)


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
