"""What a provisioner promises, checked where it could break: at each launch, each termination, each commit, the end.

- no more machines are paid for than the pool may have, and no machine exists twice;
- a machine with work is never terminated because it is idle or because there are too many;
- no machine counts as launched that the provider never had, none as gone that it has;
- what waits in the outbox is what the state says must wait, and nothing is launched that was not durably asked for;
- every machine that was asked for ends or serves, and the pool reaches its minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clutch.core.recorded import Recorded
from clutch.testing.sim.users import POOL
from clutch.wire import facts as f
from clutch.wire.ids import NodeId
from clutch.wire.machines import Instance, MachineId, StopReason, launch_token, terminate_token
from clutch.wire.messages import MemberStatus
from clutch.wire.outcomes import MachineState

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster

FOR_WANT_OF_WORK = (StopReason.IDLE, StopReason.OVER_MAX)
PROMISE = "the provisioner's promise"


class MachinePromises:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.truth = cluster.truth

    def _break(self, what: str, machine: str) -> None:
        self.cluster.promises.break_(PROMISE, what, machine)

    def launched(self, instance: Instance) -> None:
        """The provider has made one more."""
        plan = self.cluster.plan.machines
        assert plan is not None
        paid = len(self.cluster.cloud.provider.instances)
        if paid > plan.nodes_max:
            self._break(f"{paid} machines are paid for, the pool may have {plan.nodes_max}", instance.machine)
        if instance.machine not in self.truth.state.machines:
            self._break(f"{instance.machine} is launched and nobody durably asks for it", instance.machine)

    def terminating(self, machine: MachineId) -> None:
        """A master makes the provider end one: is that durably wanted, and is it really without work?"""
        known = self.truth.state.machines.get(machine)
        if known is None:
            if machine not in self.truth.state.gone_machines:
                self._break(f"{machine} is terminated and nobody ever asked for that", machine)
            return
        if known.state is not MachineState.STOPPING:
            self._break(f"{machine} is terminated while it is {known.state}", machine)
        body = self.cluster.machines.get(NodeId(machine))
        if body is None or known.reason not in FOR_WANT_OF_WORK:
            return
        alive = [str(key[0]) for key, d in body.directories.items() if d.status is not MemberStatus.EXITED]
        if alive or body.leases:
            work = ", ".join([*alive, *body.leases])
            self._break(f"{machine} is terminated ({known.reason}) with work on it: {work}", machine)

    def deciding(self, recorded: Recorded) -> None:
        state = self.truth.state
        match recorded.fact:
            case f.MachineStopAsked(machine, reason) if reason in FOR_WANT_OF_WORK:
                node = NodeId(machine)
                if state.members_on.get(node) or state.leases_on.get(node):
                    self._break(f"{machine} is to be stopped ({reason}) with work on it", machine)
            case f.MachineLaunched(machine, instance) if instance:
                if machine not in self.cluster.cloud.ever:
                    self._break(f"{machine} counts as launched and the provider never had it", machine)
            case f.MachineGone(machine):
                if machine in self.cluster.cloud.provider.instances:
                    self._break(f"{machine} counts as gone and the provider has it", machine)

    def committed(self) -> None:
        """What waits is what the state says must wait."""
        expected: dict[str, None] = {}
        for name, machine in self.truth.state.machines.items():
            if machine.launch_pending:
                expected[launch_token(name)] = None
            if machine.state is MachineState.STOPPING:
                expected[terminate_token(name)] = None
        expected.update(self.truth.owed)
        waiting = {item.token: None for item in self.cluster.store.outbox()}
        if waiting != expected and sorted(waiting) != sorted(expected):
            token = next(iter({*waiting} ^ {*expected}))
            where = "waits in the outbox and is done" if token in waiting else "does not wait in the outbox and must"
            self._break(f"{token} {where}", token.partition(":")[2])

    def at_rest(self) -> bool:
        """Every machine serves, there are as few as may be, and the provider has the same ones."""
        plan = self.cluster.plan.machines
        if plan is None:
            return True
        state = self.truth.state
        serving = [m for m in state.machines.values() if m.state is MachineState.SERVING]
        settled = len(serving) == len(state.machines) == plan.nodes_min
        return settled and sorted(state.machines) == sorted(self.cluster.cloud.provider.instances)

    def settled(self) -> None:
        if self.at_rest():
            return
        plan = self.cluster.plan.machines
        assert plan is not None
        state = self.truth.state
        for name, machine in state.machines.items():
            if machine.state is not MachineState.SERVING:
                self._break(f"{name} neither ended nor serves: it is {machine.state}", name)
        stray = [name for name in self.cluster.cloud.provider.instances if name not in state.machines]
        if stray:
            self._break(f"{stray[0]} is paid for and nobody knows it", stray[0])
        self._break(
            f"pool {POOL} has {len(state.machines)} machines at the end of all work, not {plan.nodes_min}",
            next(iter(state.machines), ""),
        )
