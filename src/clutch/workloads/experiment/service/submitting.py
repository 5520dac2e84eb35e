"""From a configuration to an experiment that is live: merged, checked against what the cluster has, opened once.

Everything that could fail an hour later and can be known now is asked now: rights, places, code, pool, secrets, and
whether checkpoints can be kept where they shall be.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from clutch.master.access.caller import Caller
from clutch.master.api.code import share_code
from clutch.master.api.tasks import check_place
from clutch.master.services import Services
from clutch.master.submission import KEY_MAX, task_id
from clutch.wire import events as e
from clutch.wire.access import Role
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiment_api import (
    BeginDetached,
    ConfigProblem,
    ExperimentSubmitted,
    SearchPreview,
    SubmitExperiment,
)
from clutch.wire.experiment_open import new_experiment
from clutch.wire.experiment_views import ExperimentView
from clutch.wire.experiment_words import holder_of
from clutch.wire.experiments import KIND, ExperimentSpec
from clutch.wire.ids import PoolName
from clutch.wire.resources import ANY
from clutch.wire.views import TaskView
from clutch.workloads.experiment.service.finding import look_up
from clutch.workloads.experiment.service.looking import own_of
from clutch.workloads.experiment.service.storages import check_storage
from clutch.workloads.experiment.service.warm_starts import begun_from

if TYPE_CHECKING:
    from clutch.workloads.experiment.config import Accepted
    from clutch.workloads.experiment.service.service import Kept

TRIES = 5
DEFAULT = "default"
SOURCE_MAX = 2**20
TAKEN = ("preview", "schema", "move")
"""Words that stand where an experiment's name does in the API's paths."""


class Submitting:
    def __init__(self, services: Services, kept: Kept | None) -> None:
        self._services = services
        self._kept = kept

    # -- the door ------------------------------------------------------------------------------------------------

    async def submit(self, caller: Caller, asked: SubmitExperiment) -> ExperimentSubmitted:
        """A live experiment. The same key of the same user gives the same one, however often and whenever it is said,
        as long as that one was not deleted."""
        _check_words(asked)
        accepted = await self._accept(caller, asked)
        spec = accepted.spec
        known = await self._known(spec) if spec.key else None
        if known is None:
            await self._check(caller, spec)
            spec = await begun_from(self._services, caller, spec)
            known = await self._open(spec, asked.paused, f"api:{caller.name}")
        notices = (*accepted.notices, *self._too_small(spec))
        return ExperimentSubmitted(experiment=known, name=spec.name, notices=notices)

    async def preview(self, caller: Caller, asked: SubmitExperiment) -> SearchPreview:
        """What the search of this configuration would do."""
        from clutch.workloads.experiment.search.preview import preview

        _check_words(asked)
        accepted = await self._accept(caller, asked)
        notices = (*accepted.notices, *self._too_small(accepted.spec))
        return msgspec.structs.replace(preview(accepted.spec), notices=notices)

    async def _accept(self, caller: Caller, asked: SubmitExperiment) -> Accepted:
        from clutch.workloads.experiment.config import Door, accepted, merged

        parent_id, parent = await self._parent(caller, asked.parent) if asked.parent else ("", None)
        written = asked.config.get("workspace")
        workspace = asked.workspace or (written if isinstance(written, str) else "")
        workspace = workspace or (parent.workspace if parent is not None else DEFAULT)
        caller.require(workspace, f"workspace {workspace[:128]}")
        layers: list[dict[str, Any]] = [asked.config]
        if self._kept is not None:
            layers += await self._kept.layers(workspace, asked.template)
        elif asked.template:
            raise NotFound("there is no such template", object=f"template {workspace}/{asked.template}")
        if parent is not None:
            layers.append(msgspec.json.decode(parent.config, type=dict[str, Any]))
        door = Door(
            owner=caller.name,
            workspace=workspace,
            project=asked.project,
            code=asked.code or (parent.program.code if parent is not None else ""),
            source=asked.source,
            parent=parent_id,
            key=asked.key,
            seed=secrets.randbits(31),
            kinds=self._kinds(merged(layers)),
        )
        return accepted(merged(layers), door)

    def _kinds(self, config: dict[str, Any]) -> tuple[str, ...]:
        """Kinds of slots that the pool of a configuration has now."""
        resources = config.get("resources")
        pool = resources.get("resource_pool", DEFAULT) if isinstance(resources, dict) else DEFAULT
        nodes = [node for node in self._services.loop.state.nodes.values() if node.pool == pool]
        return tuple(sorted({slot.kind for node in nodes for slot in node.capacity.slots}))

    def _too_small(self, spec: ExperimentSpec) -> tuple[ConfigProblem, ...]:
        """Said, not refused: nodes may come later."""
        state, wanted = self._services.loop.state, spec.resources
        pool = state.pools.get(PoolName(wanted.pool))
        if pool is None or pool.autoscale is not None:
            return ()
        nodes = [node for node in state.nodes.values() if node.pool == wanted.pool]
        slots = sum(1 for node in nodes for slot in node.capacity.slots if wanted.kind in (ANY, slot.kind))
        if not nodes or slots >= wanted.slots:
            return ()
        return (
            ConfigProblem(
                path="resources.slots_per_trial",
                problem=f"pool {wanted.pool} has {slots} slots now, a trial needs {wanted.slots}: it waits for more",
                hint="'clutch agent list' shows what there is.",
            ),
        )

    async def _parent(self, caller: Caller, wanted: str) -> tuple[str, ExperimentSpec]:
        found = await look_up(self._services.journal, caller.filters(), wanted)
        caller.require(found.workspace, f"experiment {found.key}", Role.VIEWER)
        return found.key, (await own_of(self._services, found.key)).spec

    # -- what the cluster has ------------------------------------------------------------------------------------

    async def _check(self, caller: Caller, spec: ExperimentSpec) -> None:
        """Everything the spec counts on is there."""
        services = self._services
        if spec.name in TAKEN:
            raise BadRequest(f"{spec.name!r} is a word of the API", object="experiment", path="name")
        await check_place(services, spec.workspace, spec.project)
        await share_code(services, caller, spec.program.code, spec.workspace)
        state = await services.loop.settled()
        if PoolName(spec.resources.pool) not in state.pools:
            raise BadRequest(
                f"there is no pool {spec.resources.pool!r}",
                object=f"experiment {spec.name}",
                path="resources.resource_pool",
                next_step=f"Pools: {', '.join(state.pools)}.",
            )
        await self._check_secrets(spec)
        await check_storage(services, spec)

    async def _check_secrets(self, spec: ExperimentSpec) -> None:
        names = [use.name for use in spec.program.secrets]
        if spec.program.image is not None and spec.program.image.registry_secret:
            names.append(spec.program.image.registry_secret)
        if spec.storage.secret:
            names.append(spec.storage.secret)
        if not names:
            return
        values = await self._services.access.store.secrets.values(spec.workspace, tuple(names))
        missing = [name for name in dict.fromkeys(names) if name not in values]
        if missing:
            raise BadRequest(
                f"workspace {spec.workspace} has no secret {', '.join(map(repr, missing))}",
                object=f"experiment {spec.name}",
                path="secrets",
                next_step="Put it with 'clutch secret put'.",
            )

    # -- one experiment for one key ------------------------------------------------------------------------------

    async def _known(self, spec: ExperimentSpec) -> str | None:
        """The experiment that was made with this key; None when none was, or it was deleted."""
        for number in range(TRIES):
            experiment = id_of(spec.owner, spec.key, number)
            used = await self._is_used(experiment)  # first: tasks come after their experiment
            if await self._is_there(experiment):
                return experiment
            if not used:
                return None
        return None

    async def _is_there(self, experiment: str) -> bool:
        if experiment in (await self._services.loop.settled()).workloads:
            return True
        return await self._services.journal.view(ExperimentView.table, experiment) is not None

    async def _is_used(self, experiment: str) -> bool:
        """Whether tasks of an experiment of this id were there: ids of tasks are never used twice."""
        beginning = f"{experiment}."
        page = await self._services.journal.page(TaskView.table, {}, "key", beginning, 1)
        return bool(page) and page[0].key.startswith(beginning)

    async def _open(self, spec: ExperimentSpec, paused: bool, cause: str) -> str:
        """Its id, when it is durable."""
        payload = new_experiment(spec, paused)
        for number in range(TRIES):
            chance = secrets.token_bytes(8).hex()
            experiment = id_of(spec.owner, spec.key, number) if spec.key else id_of("", chance, 0)
            used = await self._is_used(experiment)
            if await self._is_there(experiment) and spec.key:
                return experiment
            if used:
                continue
            try:
                open_it = e.OpenController(cause=cause, controller=experiment, kind=KIND, spec=payload)
                await self._ask(open_it, spec.search.source_checkpoint)
            except Conflict as error:
                if error.object != experiment:
                    raise
                if not spec.key:
                    continue
            return experiment
        raise Conflict("no free id was found", object=f"experiment {spec.name}", next_step="Submit it again.")

    async def _ask(self, open_it: e.OpenController, source: str) -> None:
        """Open it, with what its trials begin from held: retention must not take it before they have read it."""
        if source and self._kept is not None:
            holder = holder_of(open_it.controller)
            await self._kept.holding(source, holder, lambda: self._services.loop.ask(open_it))
        else:
            await self._services.loop.ask(open_it)

    # -- detached runs -------------------------------------------------------------------------------------------

    async def detached(self, caller: Caller, asked: BeginDetached) -> str:
        """The experiment of a detached run: made at its first start, found by its key at the next."""
        caller.require(asked.workspace, f"workspace {asked.workspace[:128]}")
        if not asked.key or len(asked.key) > KEY_MAX or not asked.key.isprintable():
            raise BadRequest(
                f"a detached run needs a key of at most {KEY_MAX} characters", object="detached run", path="key"
            )
        spec = self._detached_spec(caller, asked)
        known = await self._known(spec)
        if known is None:
            await check_place(self._services, spec.workspace, spec.project)
            return await self._open(spec, False, f"api:{caller.name}")
        before = (await own_of(self._services, known)).spec
        if before.workspace != asked.workspace:
            raise Conflict(
                f"a run with this key is in workspace {before.workspace}",
                object=f"experiment {known}",
                next_step="Choose another key.",
            )
        return known

    def _detached_spec(self, caller: Caller, asked: BeginDetached) -> ExperimentSpec:
        from clutch.workloads.experiment.config import Door, accepted

        hparams = {name: {"type": "const", "val": value} for name, value in asked.hparams.items()}
        config = {"hyperparameters": hparams, **asked.config, "name": asked.name}
        door = Door(
            owner=caller.name,
            workspace=asked.workspace,
            project=asked.project,
            key=f"detached:{asked.key}",
            seed=secrets.randbits(31),
            detached=True,
        )
        return accepted(config, door).spec


def id_of(owner: str, key: str, number: int) -> str:
    """The id of the experiment that an owner's key stands for; ``number``: how many before it were deleted."""
    said = msgspec.json.encode((owner, key, number))
    return str(task_id(KIND, hashlib.sha256(said).digest()))


def _check_words(asked: SubmitExperiment) -> None:
    if len(asked.key) > KEY_MAX or not asked.key.isprintable():
        raise BadRequest(f"it is not one line of {KEY_MAX} characters", object="experiment", path="key")
    if len(asked.source) > SOURCE_MAX:
        raise BadRequest(f"more than {SOURCE_MAX} characters", object="experiment", path="source")
