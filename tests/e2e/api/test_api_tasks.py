"""Tasks over HTTP, on a real master: submitted, listed, found, moved, explained."""

from __future__ import annotations

from pathlib import Path

from api_house import House, decoded, open_house, submission

from clutch.wire.access import Role
from clutch.wire.api import MovedTasks, Page, QueueEntry, Submitted, TaskDetail, TaskStory, WhyTask
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.link import MemberUse
from clutch.wire.views import TaskView


async def submit(house: House, who: str = "admin", **fields: object) -> str:
    async with house.client(who) as client:
        answer = await client.post("/api/v1/tasks", json=submission(**fields))
        assert answer.status_code == 201, answer.text
        return str(decoded(answer, Submitted).task)


async def why(house: House, task: str) -> WhyTask:
    async with house.client() as client:
        found: WhyTask = decoded(await client.get(f"/api/v1/tasks/{task}/why"), WhyTask)
        return found


async def test_a_task_is_submitted_runs_and_ends(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        task = await submit(house, name="train", argv=("python", "train.py"))
        assert task.startswith("c-") and len(task) == 10
        detail = decoded(await client.get(f"/api/v1/tasks/{task}"), TaskDetail)
        assert detail.task.state == "queued" and detail.task.owner == "admin" and detail.task.name == "train"
        assert detail.program is not None and detail.program.argv == ("python", "train.py")
        assert detail.waiting is not None and detail.waiting.code == "no_nodes" and detail.exit_code is None
        told = await why(house, task)
        assert (
            told.state == "queued"
            and "pool default has no node" in told.sentence
            and "next in its pool's queue" in told.sentence
        )
        assert any("task submitted" in line and "api:admin" in line for line in told.story)

        node = await house.node("n1")
        await house.state_is(task, "running")
        member = MemberId(TaskId(task), "main", 0)
        fence = house.services.loop.state.members[member].fence(house.services.loop.state.generation)
        house.measure(
            node, MemberUse(member, fence, "process", cpu_percent=150.0, memory_bytes=5, notices=("no limit",))
        )
        detail = decoded(await client.get(f"/api/v1/tasks/{task}"), TaskDetail)
        (shown,) = detail.members
        assert (shown.node, shown.backend, shown.cpu_percent, shown.slot_percent) == ("n1", "process", 150.0, 80)
        assert shown.notices == ("no limit",) and shown.exit_code is None
        told = await why(house, task)
        assert "It runs on n1 with process" in told.sentence and told.waiting is None

        house.puppets.end(member, 3)
        await house.state_is(task, "ended")
        detail = decoded(await client.get(f"/api/v1/tasks/{task}"), TaskDetail)
        assert detail.task.reason == "failed" and detail.exit_code == 3 and detail.members == ()
        assert detail.program is not None and detail.program.argv == ("python", "train.py"), "from the journal"
        told = await why(house, task)
        assert told.state == "ended" and "It failed with exit code 3" in told.sentence and "n1" in told.sentence
        story = decoded(await client.get(f"/api/v1/tasks/{task}/story"), TaskStory)
        assert "task submitted" in story.lines[0] and "task ended" in story.lines[-1]
        refused = await client.post(f"/api/v1/tasks/{task}/kill")
        assert refused.status_code == 409 and refused.json()["code"] == "illegal_move"
        assert "has ended (failed)" in refused.json()["cause"]


async def test_the_same_key_is_the_same_task(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        first = await submit(house, key="k", name="one")
        assert await submit(house, key="k", name="one") == first
        other = await client.post("/api/v1/tasks", json=submission(key="k", name="two"))
        assert other.status_code == 409 and "another spec" in other.json()["cause"]
        await house.user("ada", Role.EDITOR, "workspace:default")
        assert await submit(house, "ada", key="k", name="one") != first, "keys of another user never meet it"


async def test_tasks_are_moved(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        await house.node("n1")
        running, waiting = await submit(house), await submit(house, resources={"slots": 2, "kind": "artificial"})
        await house.state_is(running, "running")
        for move in ("pause", "pause"):
            assert (await client.post(f"/api/v1/tasks/{waiting}/{move}")).status_code == 204
        assert (await why(house, waiting)).sentence == "It is paused: it waits until it is resumed."
        assert (await client.post(f"/api/v1/tasks/{waiting}/resume")).status_code == 204
        assert (await client.put(f"/api/v1/tasks/{waiting}/priority", json={"priority": 7})).status_code == 204
        assert decoded(await client.get(f"/api/v1/tasks/{waiting}"), TaskDetail).task.priority == 7
        bad = await client.put(f"/api/v1/tasks/{waiting}/priority", json={"priority": 700})
        assert bad.status_code == 400 and "1 to 99" in bad.json()["cause"]
        assert (
            await client.put(f"/api/v1/tasks/{waiting}/count", json={"role": "main", "count": 2})
        ).status_code == 204
        queue = decoded(await client.get("/api/v1/queue"), Page[QueueEntry])
        assert [(entry.task, entry.slots) for entry in queue.items] == [(waiting, 4)]
        assert queue.items[0].waiting.code == "too_big"

        moved = decoded(
            await client.post("/api/v1/tasks/stop", json={"tasks": [running, waiting, "nobody"]}), MovedTasks
        )
        assert [item.task for item in moved.items] == [running, waiting, "nobody"]
        assert [bool(item.error) for item in moved.items] == [False, False, True]
        await house.state_is(waiting, "ended")
        told = await why(house, waiting)
        assert told.sentence.startswith("It was cancelled: by api:admin") and "never ran" in told.sentence
        told = await why(house, running)
        assert "asked to leave on n1 (cancelled)" in told.sentence
        assert (await client.post(f"/api/v1/tasks/{running}/kill")).status_code == 204
        await house.state_is(running, "ended")
        assert "killed by api:admin" in (await why(house, running)).sentence


async def test_a_task_is_found_by_id_beginning_or_name(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        task = await submit(house, name="only")
        for wanted in (task, task[:6], "only"):
            assert decoded(await client.get(f"/api/v1/tasks/{wanted}"), TaskDetail).task.key == task
        await submit(house, name="only")
        several = await client.get("/api/v1/tasks/only")
        assert several.status_code == 409 and task in several.json()["cause"] and "c-" in several.json()["cause"]
        assert (await client.get("/api/v1/tasks/c")).status_code == 409
        await client.post(f"/api/v1/tasks/{task}/kill")
        await house.state_is(task, "ended")
        assert decoded(await client.get("/api/v1/tasks/only"), TaskDetail).task.key != task, "the one that lives"
        for nobody in ("nobody", "c-0000000000", "%00", "a b", "%ED%A0%80", "x" * 500):
            assert (await client.get(f"/api/v1/tasks/{nobody}")).status_code in (400, 404), nobody


async def test_lists_filter_order_and_page(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        tasks = [
            await submit(house, name=f"t{n}", priority=10 + n % 3, kind="command" if n % 2 else "trial")
            for n in range(7)
        ]
        await client.post(f"/api/v1/tasks/{tasks[0]}/kill")

        async def listed(**query: object) -> list[str]:
            names: list[str] = []
            after = ""
            while True:
                page = decoded(await client.get("/api/v1/tasks", params={**query, "after": after}), Page[TaskView])
                names += [view.name for view in page.items]
                if not page.next:
                    return names
                after = page.next

        assert await listed() == ["t6", "t5", "t4", "t3", "t2", "t1", "t0"]
        assert await listed(limit=2, order="submitted_at") == ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]
        assert await listed(live=True, kind="trial", limit=1) == ["t6", "t4", "t2"]
        assert await listed(state="ended") == ["t0"] and await listed(state="ended", live=True) == []
        assert await listed(name="t1,t3,nobody") == ["t3", "t1"]
        assert await listed(order="priority", limit=3) == sorted(
            (f"t{n}" for n in range(7)), key=lambda t: (int(t[1]) % 3, tasks[int(t[1])])
        )
        assert await listed(owner="nobody") == [] and await listed(workspace="nowhere") == []
        for bad in (
            {"limit": 0},
            {"limit": 10**30},
            {"order": "colour"},
            {"state": "a\0b"},
            {"after": "ü"},
            {"live": "x"},
        ):
            answer = await client.get("/api/v1/tasks", params=bad)
            assert answer.status_code == 400, bad
            assert answer.json()["path"] in bad, answer.text
        assert (await client.get("/api/v1/tasks", params={"after": "gone"})).status_code == 404


async def test_workspaces_keep_tasks_apart(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        await house.workspace("lab")
        await house.user("ada", Role.EDITOR, "workspace:lab")
        await house.user("eve", Role.VIEWER, "workspace:lab")
        await house.user("bob", Role.ADMIN, "workspace:default")
        task = await submit(house, "ada", workspace="lab", name="secret")
        async with house.client("eve") as eve, house.client("bob") as bob, house.client("ada") as ada:
            assert (await eve.get(f"/api/v1/tasks/{task}")).status_code == 200
            assert (await eve.post(f"/api/v1/tasks/{task}/stop")).status_code == 403
            for path in (task, task[:5], "secret"):
                assert (await bob.get(f"/api/v1/tasks/{path}")).status_code == 404
            assert (await bob.post(f"/api/v1/tasks/{task}/stop")).status_code == 404
            assert decoded(await bob.get("/api/v1/tasks"), Page[TaskView]).items == ()
            assert decoded(await bob.get("/api/v1/tasks?workspace=lab"), Page[TaskView]).items == ()
            assert decoded(await bob.get("/api/v1/queue"), Page[QueueEntry]).items == ()
            assert (await ada.post("/api/v1/tasks", json=submission(workspace="default"))).status_code == 404
            assert (await eve.post("/api/v1/tasks", json=submission(workspace="lab"))).status_code == 403
        async with house.client() as admin:
            assert (await admin.post("/api/v1/tasks", json=submission(workspace="nowhere"))).status_code == 404


WRONG: list[tuple[str, dict[str, object]]] = [
    ("program.argv", {"program": {"argv": []}}),
    ("program.argv[0]", {"program": {"argv": ["a\0b"]}}),
    ("program.environment.A B", {"program": {"argv": ["x"], "environment": {"A B": "1"}}}),
    ("program.environment.CLUTCH_TOKEN", {"program": {"argv": ["x"], "environment": {"CLUTCH_TOKEN": "1"}}}),
    ("program.code", {"program": {"argv": ["x"], "code": "sha256:zz"}}),
    ("program.code", {"program": {"argv": ["x"], "code": "sha256:" + "0" * 64}}),
    ("program.ports[0]", {"program": {"argv": ["x"], "ports": [70000]}}),
    ("program.mounts[0].source", {"program": {"argv": ["x"], "mounts": [{"source": "x/..", "target": "/y"}]}}),
    ("program.colour", {"program": {"argv": ["x"], "colour": "red"}}),
    ("program", {"program": {"argv": ["x" * 200_000]}}),
    ("name", {"name": "a b"}),
    ("name", {"name": "stop"}),
    ("kind", {"kind": ""}),
    ("count", {"count": "many"}),
    ("roles[0].shape.count", {"count": 0}),
    ("roles[0].shape.each.slots", {"resources": {"slots": -1}}),
    ("roles[0].shape.each.memory_bytes", {"resources": {"memory_bytes": 2**63}}),
    ("priority", {"priority": 0}),
    ("leave_within_s", {"leave_within_s": 1e300}),
    ("key", {"key": "a\0"}),
]


async def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        for path, change in WRONG:
            answer = await client.post("/api/v1/tasks", json=submission(**change))
            assert answer.status_code == 400, (path, answer.text)
            error = answer.json()
            assert error["code"] == "bad_request"
            shown = error["path"] + " " + error["cause"]
            assert path in shown or path.rpartition(".")[2] in shown, (path, error)


async def test_an_unknown_pool_is_not_found(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        answer = await client.post("/api/v1/tasks", json=submission(pool="moon"))
        assert answer.status_code == 404 and "default" in answer.json()["next_step"]
