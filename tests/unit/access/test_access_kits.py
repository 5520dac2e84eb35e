"""What a start needs: only for the incarnation that should be there, and what is missing is said by name."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from clutch.core.state import State
from clutch.master.access.door import Access, live_in
from clutch.master.kits import Kits
from clutch.master.settings import MasterSettings
from clutch.testing.access_suite import Hand, refused
from clutch.testing.stage import POOL, Stage
from clutch.wire import events as e
from clutch.wire.access import CallerKind, NewSecret, NewUser, NewWorkspace, UserChange
from clutch.wire.containers import RunAs
from clutch.wire.errors import NotAuthenticated, Stale
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId
from clutch.wire.messages import Exit
from clutch.wire.programs import Image, Kit, KitRequest, Program, SecretUse
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, PoolSpec, RoleSpec, TaskSpec

MEMBER, NODE = MemberId(TaskId("t"), "main", 0), NodeId("n")


class Yard:
    """A cluster on a table with access over it."""

    def __init__(self, access: Access, stage: Stage) -> None:
        self.access = access
        self.stage = stage
        self.kits = Kits(access, self.state, lambda: ("https://a:1", "https://b:2"))

    async def state(self) -> State:
        return self.stage.state

    def submit(self, program: Program | None, owner: str = "ada") -> None:
        payload = msgspec.msgpack.encode(program) if program is not None else b"\xc1 of a workload"
        role = RoleSpec("main", Members(1, Resources(slots=1)))
        spec = TaskSpec(
            kind="command", name="t", pool=POOL, roles=(role,), owner=owner, workspace="vision", payload=payload
        )
        self.stage.do(e.Submit(task=TaskId("t"), spec=spec))

    def fence(self) -> Fence:
        return self.stage.state.members[MEMBER].fence(self.stage.state.generation)

    async def kit(self, node: NodeId = NODE) -> Kit:
        return await self.kits.kit(node, KitRequest(MEMBER, self.fence()))


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    stage = Stage()
    stage.add_node("n", 2)
    access = await Access.open(MasterSettings(data=tmp_path), Hand(), live_in(lambda: stage.state))
    await access.bootstrap()
    await access.store.users.create(NewUser("ada"), "", 0.0)
    await access.store.workspaces.create(NewWorkspace("vision"), "ada", 0.0)
    yield Yard(access, stage)
    await access.close()


async def test_a_kit_has_token_masters_and_secrets(yard: Yard) -> None:
    for name, value in (("wandb", "hunter2"), ("registry", "bot:pass")):
        await yard.access.store.secrets.put("vision", NewSecret(name, value), "ada", 0.0)
    image = Image("private/image", registry_secret="registry")
    yard.submit(Program(argv=("x",), secrets=(SecretUse("wandb", "WANDB_API_KEY"),), image=image))
    kit = await yard.kit()
    assert not kit.error and kit.registry_auth == "bot:pass" and kit.run_as is None
    token = kit.environment.pop("CLUTCH_TOKEN")
    assert kit.environment == {"WANDB_API_KEY": "hunter2", "CLUTCH_MASTERS": "https://a:1,https://b:2"}
    caller = await yard.access.identify(token)
    assert (caller.kind, caller.member, caller.fence) == (CallerKind.TASK, MEMBER, yard.fence())
    assert b"hunter2" not in msgspec.msgpack.encode([repr(r) for r in yard.stage.history])


async def test_a_token_dies_with_its_incarnation(yard: Yard) -> None:
    yard.submit(Program(argv=("x",)))
    first = (await yard.kit()).environment["CLUTCH_TOKEN"]
    yard.stage.run(MEMBER)
    assert (await yard.access.identify(first)).member == MEMBER
    old = yard.fence()
    yard.stage.exit(MEMBER, Exit(1))
    await refused(NotAuthenticated, yard.access.identify(first))
    yard.stage.pass_time(100)
    assert yard.fence() > old, "it runs again"
    second = (await yard.kit()).environment["CLUTCH_TOKEN"]
    await refused(NotAuthenticated, yard.access.identify(first))
    assert (await yard.access.identify(second)).fence == yard.fence()
    yard.stage.do(e.Kill(task=TaskId("t")))
    await refused(NotAuthenticated, yard.access.identify(second))
    await refused(Stale, yard.kits.kit(NODE, KitRequest(MEMBER, old)))


async def test_only_the_incarnation_that_should_be_there_gets_one(yard: Yard) -> None:
    yard.submit(Program(argv=("x",)))
    await refused(Stale, yard.kit(NodeId("elsewhere")))
    newer = Fence(1, yard.fence().epoch + 1, 1)
    await refused(Stale, yard.kits.kit(NODE, KitRequest(MEMBER, newer)))
    await refused(Stale, yard.kits.kit(NODE, KitRequest(MemberId(TaskId("u"), "main", 0), newer)))
    yard.stage.machines[NODE].obedient = False
    request = KitRequest(MEMBER, yard.fence())
    yard.stage.do(e.Kill(task=TaskId("t")))
    await refused(Stale, yard.kits.kit(NODE, request))


async def test_missing_secrets_are_named_and_nothing_is_given(yard: Yard) -> None:
    await yard.access.store.secrets.put("default", NewSecret("elsewhere", "hunter2"), "ada", 0.0)
    uses = (SecretUse("none", "A"), SecretUse("elsewhere", "B"))
    yard.submit(Program(argv=("x",), secrets=uses, image=Image("i", registry_secret="key")))
    kit = await yard.kit()
    assert all(name in kit.error for name in ("'none'", "'elsewhere'", "'key'", "vision"))
    assert not kit.environment and not kit.registry_auth


async def test_a_task_without_a_program_gets_its_token(yard: Yard) -> None:
    yard.submit(None)
    assert sorted((await yard.kit()).environment) == ["CLUTCH_MASTERS", "CLUTCH_TOKEN"]


async def test_a_master_that_knows_no_address_leaves_it_to_the_agent(yard: Yard) -> None:
    yard.kits = Kits(yard.access, yard.state, tuple)
    yard.submit(None)
    assert list((await yard.kit()).environment) == ["CLUTCH_TOKEN"]


async def test_a_pool_may_run_members_as_their_submitters(yard: Yard) -> None:
    yard.stage.do(e.PutPool(pool=PoolSpec(POOL, run_as_users=True)))
    yard.submit(Program(argv=("x",)))
    refused_kit = await yard.kit()
    assert "ada" in refused_kit.error and POOL in refused_kit.error and not refused_kit.environment
    await yard.access.store.users.change("ada", UserChange(uid=1234), None)
    assert (await yard.kit()).error, "a uid alone is not enough"
    await yard.access.store.users.change("ada", UserChange(gid=100), None)
    assert (await yard.kit()).run_as == RunAs(1234, 100)
    yard.stage.do(e.PutPool(pool=PoolSpec(POOL)))
    assert (await yard.kit()).run_as is None


async def test_an_owner_nobody_knows_runs_nowhere_as_a_user(yard: Yard) -> None:
    yard.stage.do(e.PutPool(pool=PoolSpec(POOL, run_as_users=True)))
    yard.submit(Program(argv=("x",)), owner="stranger")
    assert "stranger" in (await yard.kit()).error
