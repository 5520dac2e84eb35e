"""Stories as text: one command a line, and what followed from it written below. Reviewed as a diff when it changes.

A file is a sequence of blocks, with comments between them::

    # A trial's life
    node n0 slots=2
    submit t trial slots=1
    ----
    task submitted: task=t ...

``play(text)`` carries out the commands of each block on a ``Stage`` (the production core and the production agent
brain) and gives the text back with what really followed. The commands are the methods of ``Script`` named ``do_*``;
``WORD`` arguments come by place, settings as ``key=value``. A refused event is part of the story, not a failure of it;
only a command that is none raises ``BadRequest``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from clutch.core.outbox import outbox
from clutch.testing.stage import POOL, Stage
from clutch.wire import events as e
from clutch.wire.errors import BadRequest, ClutchError
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName, TaskId
from clutch.wire.machines import Instance, MachineId
from clutch.wire.messages import Exit, ExitCause, MemberStatus
from clutch.wire.resources import CUDA, Resources
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import (
    Autoscale,
    FairSharePolicy,
    Members,
    OnDeath,
    OnNodeLost,
    PoolSpec,
    Quota,
    RoleSpec,
    Split,
    Spread,
    Subscription,
    TaskSpec,
)

RULE = "----"
Settings = dict[str, str]


def play(text: str) -> str:
    """The scenario with what followed from each block, as of this release."""
    script = Script()
    out: list[str] = []
    commands: list[str] = []
    in_answer = False
    for line in text.splitlines():
        if line.strip() == RULE:
            out += [RULE, *script.play(commands)]
            commands, in_answer = [], True
        elif not line.strip():
            in_answer = False
            out.append("")
        elif not in_answer:
            out.append(line)
            if not line.startswith("#"):
                commands.append(line)
    if commands:
        raise BadRequest(f"nothing follows {commands[0]!r}", object="scenario", next_step=f"End its block with {RULE}.")
    return "\n".join(out).rstrip("\n") + "\n"


def task_spec(kind: str, name: str, settings: Settings) -> TaskSpec:
    """A task from a line: ``trial``, ``notebook``, ``program`` or ``workers``, with its settings."""
    given = dict(settings)
    number: Callable[[str, int], int] = lambda key, default: int(given.pop(key, default))  # noqa: E731
    slots = number("slots", 1)
    if kind == "trial":
        shape = Split(slots) if given.pop("split", "") else Members(number("ranks", 1), Resources(slots=slots))
        roles: tuple[RoleSpec, ...] = (RoleSpec("main", shape, count_max=number("most", 0)),)
    elif kind == "notebook":
        each = Members(number("replicas", 1), Resources(millicpus=1000))
        spread = Spread(given.pop("spread", "hard"))
        roles = (RoleSpec("replica", each, spread, Subscription(slots, CUDA), OnDeath.RESPAWN),)
    elif kind == "program":
        actors = Members(number("actors", 1), Resources(millicpus=1000))
        trainer = RoleSpec("trainer", Members(1, Resources(slots=slots)))
        roles = (trainer, RoleSpec("actor", actors, on_death=OnDeath.RESPAWN, count_min=1, count_max=8))
    else:
        raise BadRequest(f"{kind!r} is no kind of task here", object=f"submit {name}")
    more: dict[str, Any] = {}
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "priority": ("priority", int),
        "owner": ("owner", str),
        "restarts": ("max_restarts", int),
        "window": ("leave_within_s", float),
        "flush": ("flush_deadline_s", float),
        "node_lost": ("on_node_lost", OnNodeLost),
        "preemptible": ("preemptible", lambda word: word == "yes"),
    }
    for key, word in given.items():
        if key not in readers:
            raise BadRequest(f"{key!r} is no setting of a {kind}", object=f"submit {name}")
        field, read = readers[key]
        more[field] = read(word)
    return TaskSpec(kind=kind, name=name, pool=POOL, roles=roles, **more)


class Script:
    """Carries out commands and says what followed."""

    def __init__(self) -> None:
        self.stage = Stage()

    def play(self, commands: list[str]) -> list[str]:
        said: list[str] = []
        for command in commands:
            try:
                said += self._one(command)
            except ClutchError as error:
                if isinstance(error, BadRequest) and error.object.startswith("command"):
                    raise
                said += [*self.stage.take(), f"refused ({error.code}): {error}"]
        return said or ["(nothing)"]

    def _one(self, command: str) -> list[str]:
        verb, *rest = command.split()
        words = [word for word in rest if "=" not in word]
        settings = dict(word.split("=", 1) for word in rest if "=" in word)
        action = getattr(self, f"do_{verb.replace('-', '_')}", None)
        if action is None:
            raise BadRequest(f"there is no command {verb!r}", object=f"command {command!r}")
        try:
            answer = action(*words, **settings)
        except TypeError as error:
            raise BadRequest(str(error), object=f"command {command!r}") from error
        return [*self.stage.take(), *(answer or [])]

    # -- the cluster ---------------------------------------------------------------------------------------------

    def do_pool(self, **settings: str) -> None:
        """``pool policy=fair_share min_run_s=5 ...``"""
        policy = {"policy": FairSharePolicy()} if settings.pop("policy", "") == "fair_share" else {}
        known = msgspec.structs.asdict(self.stage.state.pools[POOL])
        changed = {key: type(known[key])(float(word)) for key, word in settings.items()}
        self.stage.do(e.PutPool(cause="admin", pool=PoolSpec(**{**known, **changed, **policy})))

    def do_quota(self, scope: str, slots: str) -> None:
        self.stage.do(e.SetQuota(cause="admin", quota=Quota(scope, int(slots))))

    def do_node(self, name: str, slots: str = "4", pool: str = POOL) -> None:
        self.stage.add_node(name, int(slots), pool=PoolName(pool))

    def do_cut(self, node: str) -> None:
        """The link to a node breaks, and the master notices."""
        self.stage.machines[NodeId(node)].linked = False
        self.stage.do(e.Silent(cause="timer", node=NodeId(node)))

    def do_mend(self, node: str) -> None:
        self.stage.machines[NodeId(node)].linked = True
        self.stage.hear(node)

    def do_stubborn(self, node: str) -> None:
        """From here on nothing on the node ends, or gives slots back, by itself."""
        self.stage.machines[NodeId(node)].obedient = False

    def do_obedient(self, node: str) -> None:
        self.stage.machines[NodeId(node)].obedient = True
        self.stage.beat(node)

    def do_drain(self, node: str) -> None:
        self.stage.do(e.DrainNode(cause="admin", node=NodeId(node)))

    def do_open(self, node: str) -> None:
        self.stage.do(e.OpenNode(cause="admin", node=NodeId(node)))

    def do_remove(self, node: str) -> None:
        self.stage.do(e.RemoveNode(cause="admin", node=NodeId(node)))

    def do_after(self, seconds: str) -> list[str]:
        """Let time pass; everything due on the way falls due."""
        self.stage.pass_time(float(seconds))
        return [f"(it is {self.stage.now:g})"]

    def do_crash(self, what: str, node: str = "") -> None:
        """``crash master``: another takes over from the journal. ``crash agent n0``: it starts again."""
        if what == "master":
            self.stage.new_master()
        else:
            self.stage.machines[NodeId(node)].restart_agent()
            self.stage.hear(node)

    # -- machines ------------------------------------------------------------------------------------------------

    def do_scale(self, **settings: str) -> None:
        """``scale max=2 min=0 slots=4 idle=60 starting=300 disconnected=120``: the pool's machines come and go."""
        number = {key: float(word) for key, word in settings.items()}
        scale = Autoscale(
            nodes_min=int(number.pop("min", 0)),
            nodes_max=int(number.pop("max", 1)),
            slots_per_node=int(number.pop("slots", 4)),
            millicpus_per_node=32_000,
            memory_bytes_per_node=2**36,
            idle_s=number.pop("idle", 60.0),
            starting_s=number.pop("starting", 300.0),
            disconnected_s=number.pop("disconnected", 120.0),
        )
        if number:
            raise BadRequest(f"{next(iter(number))!r} is no setting of scale", object="command 'scale'")
        pool = msgspec.structs.replace(self.stage.state.pools[POOL], autoscale=scale)
        self.stage.do(e.PutPool(cause="admin", pool=pool))

    def do_launched(self, machine: str) -> None:
        """The provider has launched a machine."""
        up = e.MachineUp(cause="provider", machine=MachineId(machine), instance=f"i-{machine}")
        self.stage.do(up)

    def do_launch_failed(self, machine: str, why: str = "no-room") -> None:
        self.stage.do(e.LaunchFailed(cause="provider", machine=MachineId(machine), detail=why))

    def do_terminated(self, machine: str) -> None:
        self.stage.machines.pop(NodeId(machine), None)
        self.stage.do(e.MachineDown(cause="provider", machine=MachineId(machine)))

    def do_listed(self, *names: str) -> None:
        """The provider says that it has exactly these machines."""
        found = tuple(Instance(MachineId(name), f"i-{name}", POOL, "c") for name in names)
        index = self.stage.state.index
        self.stage.do(e.MachinesListed(cause="provider", pool=POOL, instances=found, index=index))

    def do_outbox(self) -> list[str]:
        """What waits to be performed."""
        waits: dict[str, None] = {}
        for recorded in self.stage.history:
            owed = outbox(self.stage.refold(until=recorded.index), [recorded])
            waits.update({item.token: None for item in owed.items})
            for token in owed.delivered:
                waits.pop(token, None)
        return list(waits) or ["(nothing waits)"]

    # -- what users ask ------------------------------------------------------------------------------------------

    def do_submit(self, name: str, kind: str, **settings: str) -> None:
        spec = task_spec(kind, name, settings)
        self.stage.do(e.Submit(cause=f"api:{spec.owner}", task=TaskId(name), spec=spec))

    def do_pause(self, task: str) -> None:
        self.stage.do(e.Pause(cause="api", task=TaskId(task)))

    def do_resume(self, task: str) -> None:
        self.stage.do(e.Resume(cause="api", task=TaskId(task)))

    def do_cancel(self, task: str) -> None:
        self.stage.do(e.Cancel(cause="api", task=TaskId(task)))

    def do_stop(self, task: str) -> None:
        self.stage.do(e.Cancel(cause="searcher", task=TaskId(task), reason=PreemptReason.STOPPED))

    def do_kill(self, task: str) -> None:
        self.stage.do(e.Kill(cause="api", task=TaskId(task)))

    def do_resize(self, task: str, role: str, count: str) -> None:
        self.stage.do(e.Resize(cause="api", task=TaskId(task), role=role, count=int(count)))

    def do_priority(self, task: str, priority: str) -> None:
        self.stage.do(e.SetPriority(cause="api", task=TaskId(task), priority=int(priority)))

    def do_exclude(self, task: str, node: str) -> None:
        self.stage.do(e.ExcludeNode(cause="api", task=TaskId(task), node=NodeId(node)))

    def do_why(self, request: str) -> list[str]:
        """Why a task waits, as the last plan has it."""
        state, identity = self.stage.state, TaskId(request)
        if identity not in state.ledgers[POOL].waiting:  # type: ignore[comparison-overlap]
            task = state.tasks.get(identity)
            return [f"{request}: {task.state if task else 'ended'}"]
        reason = self.stage.plans[POOL].why(identity)  # type: ignore[arg-type]
        blockers = f" [{', '.join(reason.blockers)}]" if reason.blockers else ""
        return [f"{request} waits at {reason.position}: {reason.code}: {reason.detail}{blockers}"]

    def do_show(self, task: str) -> list[str]:
        """Where a task stands, in one line per member."""
        found = self.stage.state.tasks.get(TaskId(task))
        if found is None:
            return [f"{task}: ended"]
        allocation = self.stage.state.allocations.get(found.task)
        runs = f", epoch {found.epoch} {allocation.state}" if allocation else ""
        lines = [f"{task}: {found.state}{runs}, {found.failures} failures"]
        for member in self.stage.state.members_of(found.task):
            node = f" on {member.placement.node}" if member.placement else ""
            lines.append(f"  {member.member} i{member.incarnation} {member.state}{node}")
        return lines

    # -- what processes do ---------------------------------------------------------------------------------------

    def _members(self, name: str, *status: MemberStatus) -> list[MemberId]:
        """A member by its name, or all of a task that some machine has in one of these states."""
        task, slash, rest = name.partition("/")
        if slash:
            role, _, rank = rest.rpartition(".")
            return [MemberId(TaskId(task), role, int(rank))]
        found = [
            member
            for machine in self.stage.machines.values()
            for (member, _), record in machine.brain.records.items()
            if member.task == task and record.status in status
        ]
        return sorted(dict.fromkeys(found))

    def do_run(self, name: str) -> None:
        """Processes come up: one member's (``t/main.0``), or all of a task's that were started."""
        for member in self._members(name, MemberStatus.STARTING):
            self.stage.run(member)

    def do_exit(self, name: str, code: str, cause: str = "own", metrics: str = "0", output: str = "0") -> None:
        """Processes end: one member's, or all of a task's that run."""
        exit = Exit(int(code), ExitCause(cause), int(metrics), int(output))
        for member in self._members(name, MemberStatus.STARTING, MemberStatus.RUNNING):
            self.stage.exit(member, exit)

    def _word(self, name: str, fence: str) -> dict[str, Any]:
        """Who speaks: a member by its name, or the first of a task; as it is now, or with another fence."""
        known = [member for member in self.stage.state.members if member.task == name]
        found = known or self._members(name)
        if not found:
            raise BadRequest("it has no member that could speak", object=f"task {name}")
        member = found[0]
        if fence:
            generation, epoch, incarnation = (
                int(part) for part in fence.replace("e", "g").replace("i", "g").split("g")[1:]
            )
            speaks = Fence(generation, epoch, incarnation)
        else:
            speaks = self.stage.state.members[member].fence(self.stage.state.generation)
        return {"cause": "program", "task": member.task, "member": member, "fence": speaks}

    def do_ack(self, name: str, fence: str = "") -> None:
        """A program says that it has seen that it must leave."""
        self.stage.do(e.AckLeave(**self._word(name, fence)))

    def do_finished(self, name: str, fence: str = "") -> None:
        self.stage.do(e.DeclareFinished(**self._word(name, fence)))

    def do_checkpoint(self, name: str, checkpoint: str, step: str, fence: str = "") -> None:
        self.stage.do(e.CommitCheckpoint(**self._word(name, fence), checkpoint=checkpoint, step=int(step)))

    def do_reached(self, name: str, metrics: str = "0", output: str = "0") -> None:
        """The store has a dead member's metrics and output up to here."""
        word = self._word(name, "")
        reached = e.ReachLanes(
            cause="lanes",
            member=word["member"],
            fence=word["fence"],
            metrics_sequence=int(metrics),
            output_offset=int(output),
        )
        self.stage.do(reached)

    # -- cells ---------------------------------------------------------------------------------------------------

    def do_ask_lease(self, task: str, cell: str, slots: str = "1", ranks: str = "0", wait: str = "60") -> None:
        members = tuple(MemberId(TaskId(task), "replica", int(rank)) for rank in ranks.split(","))
        ask = e.AskLease(
            cause="gateway",
            lease=LeaseId(f"{task}/{cell}"),
            task=TaskId(task),
            cell=int(cell),
            members=members,
            slots=int(slots),
            kind=CUDA,
            wait_limit_s=float(wait),
        )
        self.stage.do(ask)

    def _number(self, lease: str) -> dict[str, Any]:
        found = self.stage.state.leases.get(LeaseId(lease))
        return {"cause": "gateway", "lease": LeaseId(lease), "number": found.number if found else 0}

    def do_idle(self, lease: str, use: str) -> None:
        self.stage.do(e.IdleLease(**self._number(lease), use=int(use)))

    def do_reuse(self, lease: str, use: str) -> None:
        self.stage.do(e.ReuseLease(**self._number(lease), use=int(use)))

    def do_withdraw(self, lease: str) -> None:
        self.stage.do(e.WithdrawLease(cause="gateway", lease=LeaseId(lease)))

    def do_free(self, node: str, lease: str) -> None:
        """A stubborn node gives a lease's slots back after all."""
        self.stage.free(node, lease)
