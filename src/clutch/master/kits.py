"""What a start needs and nobody writes down: the member's token, its secrets' values, the user it runs as.

An agent asks at the moment of a start. Only the incarnation that should be on that very node gets a kit; what is
missing is said by name, so that the member's exit says it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from clutch.core.member import PRESENT
from clutch.core.state import State
from clutch.core.task import Task
from clutch.master.access.door import Access
from clutch.master.access.people import mapping
from clutch.wire.containers import RunAs
from clutch.wire.errors import NotFound, Stale
from clutch.wire.ids import NodeId
from clutch.wire.messages import Phase
from clutch.wire.programs import Kit, KitRequest, Program, program_in

TOKEN_VARIABLE, MASTERS_VARIABLE = "CLUTCH_TOKEN", "CLUTCH_MASTERS"


class Kits:
    """``state`` gives the live state at a moment when all of it is durable (``Loop.settled``), ``masters`` the
    addresses at which members reach the masters, empty for those that their agent uses."""

    def __init__(
        self, access: Access, state: Callable[[], Awaitable[State]], masters: Callable[[], tuple[str, ...]]
    ) -> None:
        self._access = access
        self._state = state
        self._masters = masters

    async def kit(self, node: NodeId, request: KitRequest) -> Kit:
        """The kit of an incarnation that is to start on this node now. ``Stale`` for any other; an incarnation that
        lacks something gets a kit whose ``error`` names it."""
        task, run_as_users = self._wanted(await self._state(), node, request)
        program = program_in(task.spec.payload)
        environment, registry_auth, missing = await self._secrets(task, program)
        if missing:
            cause = f"workspace {task.spec.workspace} has no secret {', '.join(map(repr, missing))}"
            return self._refused(request, f"{cause}. Put it with 'clutch secret put', then start the task again.")
        run_as = await self._run_as(task.spec.owner) if run_as_users else None
        if run_as_users and run_as is None:
            cause = f"pool {task.spec.pool} runs members as their submitters, and user {task.spec.owner} has no uid"
            return self._refused(request, f"{cause} and gid. An administrator can set them on the user.")
        return Kit(
            request.member,
            request.fence,
            environment={
                **environment,
                **self._addresses(),
                TOKEN_VARIABLE: self._access.task_token(request.member, request.fence),
            },
            run_as=run_as,
            registry_auth=registry_auth,
        )

    def _addresses(self) -> dict[str, str]:
        """Where members find the masters, if that was said; else they find them where their agent does."""
        masters = self._masters()
        return {MASTERS_VARIABLE: ",".join(masters)} if masters else {}

    @staticmethod
    def _refused(request: KitRequest, why: str) -> Kit:
        return Kit(request.member, request.fence, error=why)

    @staticmethod
    def _wanted(state: State, node: NodeId, request: KitRequest) -> tuple[Task, bool]:
        """The task of an incarnation that should run on this node, and whether its pool runs it as its submitter."""
        member = state.members.get(request.member)
        current = (
            member is not None
            and member.state in PRESENT
            and member.phase is not Phase.END
            and member.fence(state.generation) == request.fence
            and member.placement is not None
            and member.placement.node == node
        )
        if not current:
            raise Stale(
                f"it is not wanted on node {node}",
                object=f"member {request.member} {request.fence}",
                next_step="Do not start it; the next list of what is wanted says what is.",
            )
        task = state.tasks[request.member.task]
        return task, state.pools[task.spec.pool].run_as_users

    async def _secrets(self, task: Task, program: Program | None) -> tuple[dict[str, str], str, list[str]]:
        """Values by variable, the registry's ``user:password``, and the names of those that do not exist."""
        uses = program.secrets if program is not None else ()
        registry = program.image.registry_secret if program is not None and program.image is not None else ""
        names = tuple(dict.fromkeys((*(use.name for use in uses), *((registry,) if registry else ()))))
        if not names:
            return {}, "", []
        values = await self._access.store.secrets.values(task.spec.workspace, names)
        missing = [name for name in names if name not in values]
        environment = {use.variable: values[use.name] for use in uses if use.name in values}
        return environment, values.get(registry, ""), missing

    async def _run_as(self, owner: str) -> RunAs | None:
        try:
            mapped = mapping(await self._access.store.users.get(owner))
        except NotFound:
            return None
        return RunAs(*mapped) if mapped is not None else None
