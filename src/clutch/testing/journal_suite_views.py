"""What every journal must do with views and the outbox."""

from __future__ import annotations

from typing import Any

from clutch.backends.journal.base import Has, Where
from clutch.testing.journal_ground import Ground, make_rows, node, refused, task
from clutch.wire.errors import BadRequest, NotFound
from clutch.wire.journal import Batch, Gone, OutboxItem


async def check_views_follow_the_last_word(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    await journal.append(Batch(make_rows(lead, 1, 1), (task("t1"), task("t1", state="running"), node("n1"))))
    assert await journal.view("tasks", "t1") == task("t1", state="running")
    assert await journal.view("nodes", "n1") == node("n1")
    assert await journal.view("tasks", "n1") is None
    await journal.append(Batch((), (Gone("tasks", "t1"), task("t1", state="back"), task("t2"), Gone("tasks", "t2"))))
    assert await journal.view("tasks", "t1") == task("t1", state="back")
    assert await journal.view("tasks", "t2") is None
    await journal.append(Batch((), (Gone("tasks", "t1"), Gone("tasks", "never"))))
    assert await journal.view("tasks", "t1") is None
    odd = task("ключ'\"; DROP TABLE tasks; --", name="🦜 %s $1 ?", priority=-(2**63), submitted_at=1e308)
    await journal.append(Batch((), (odd,)))
    assert await journal.view("tasks", odd.key) == odd
    assert await journal.page("tasks", {"name": odd.name, "priority": odd.priority}, "key", "", 5) == [odd]
    error = await refused(BadRequest, journal.view("users", "x"))
    assert "tasks" in error.next_step


async def check_pages_are_stable(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)
    names = ["Zoë", "ada", "Ada", "éva", "eve", "漢", "🦜", "z", "", "a b"]
    views = [task(f"t{n:03}", owner=names[n % 10], priority=n % 3, submitted_at=float(n % 7)) for n in range(200)]
    await journal.append(Batch(make_rows(lead, 1, 1), tuple(views)))

    async def walk(where: Where, order_by: str, limit: int) -> list[str]:
        keys: list[str] = []
        while page := await journal.page("tasks", where, order_by, keys[-1] if keys else "", limit):
            assert len(page) <= limit
            keys += [view.key for view in page]
        return keys

    for column in ("key", "owner", "priority", "submitted_at"):
        expected = [v.key for v in sorted(views, key=lambda v: (getattr(v, column), v.key))]
        assert await walk({}, column, 7) == expected, column
        assert await walk({}, f"-{column}", 33) == expected[::-1], column
    few = [v.key for v in views if v.owner == "Ada" and v.priority == 1]
    assert await walk({"owner": "Ada", "priority": 1}, "key", 3) == few
    assert await walk({"owner": "nobody"}, "key", 3) == []
    either = [v.key for v in views if v.owner in ("Ada", "eve") and v.priority == 1]
    assert await walk({"owner": ("Ada", "eve", "nobody"), "priority": 1}, "key", 3) == either, "any of a tuple"
    assert await walk({"owner": ()}, "key", 3) == [], "nothing is one of none"
    for part in ("d", "D", "%", "_", "", "漢", "a b", "\\"):
        has = [v.key for v in views if part in v.owner and v.priority == 1]
        assert await walk({"owner": Has(part), "priority": 1}, "key", 3) == has, (
            f"has {part!r} in it, letter for letter"
        )

    page = await journal.page("tasks", {}, "submitted_at", "", 50)
    early = tuple(task(f"early{n}", submitted_at=-1.0) for n in range(5))
    await journal.append(Batch((), early))
    rest = await journal.page("tasks", {}, "submitted_at", page[-1].key, 1_000)
    expected = [v.key for v in sorted(views, key=lambda v: (v.submitted_at, v.key))]
    assert [v.key for v in (*page, *rest)] == expected, "rows put before the page moved it"
    await journal.append(Batch((), (Gone("tasks", page[-1].key),)))
    await refused(NotFound, journal.page("tasks", {}, "submitted_at", page[-1].key, 5))
    assert len(await journal.page("tasks", {}, "key", page[-1].key, 5)) == 5, "the key alone is place enough"


async def check_bad_questions_are_refused(ground: Ground) -> None:
    journal = await ground.open()
    questions: list[tuple[str, dict[str, Any], str, int, str]] = [
        ("tasks", {"colour": "red"}, "key", 5, "colour"),
        ("tasks", {}, "colour", 5, "colour"),
        ("tasks", {}, "--key", 5, "-key"),
        ("tasks", {}, "", 5, ""),
        ("tasks", {'owner" OR 1=1 --': "x"}, "key", 5, 'owner" OR 1=1 --'),
        ("tasks", {"priority": "high"}, "key", 5, "priority"),
        ("tasks", {"owner": 5}, "key", 5, "owner"),
        ("tasks", {"owner": ("ada", 5)}, "key", 5, "owner"),
        ("tasks", {"owner": ("ada", "nul\0")}, "key", 5, "owner"),
        ("tasks", {"owner": "nul\0"}, "key", 5, "owner"),
        ("tasks", {"owner": Has("nul\0")}, "key", 5, "owner"),
        ("tasks", {"priority": Has("1")}, "key", 5, "priority"),
        ("tasks", {"priority": 2**70}, "key", 5, "priority"),
        ("tasks", {}, "key", 0, "limit"),
        ("tasks", {}, "key", 10_001, "limit"),
        ("users", {}, "key", 5, ""),
    ]
    for table, where, order_by, limit, path in questions:
        error = await refused(BadRequest, journal.page(table, where, order_by, "", limit))
        assert error.path == path, (where, order_by, error)
    error = await refused(BadRequest, journal.page("tasks", {"colour": "red"}, "key", "", 5))
    assert "owner" in error.next_step, "known columns are listed"


async def check_outbox_is_idempotent(ground: Ground) -> None:
    journal = await ground.open()
    lead = await journal.lead("a", 60.0)

    def item(token: str, due_at: float, payload: bytes = b"") -> OutboxItem:
        return OutboxItem(token, "webhook", due_at, payload)

    await journal.append(Batch(make_rows(lead, 1, 1), (), (item("b", 2.0), item("a", 2.0), item("c", 1.0))))
    await journal.append(Batch((), (), (item("b", 2.0), item("b", 2.0))))
    assert [i.token for i in await journal.pending(10)] == ["c", "a", "b"]
    assert [i.token for i in await journal.pending(2)] == ["c", "a"]
    await journal.append(Batch((), (), (item("c", 9.0, b"again"),)))
    assert await journal.pending(10) == [item("a", 2.0), item("b", 2.0), item("c", 9.0, b"again")]
    await journal.append(Batch((), (), (item("d", 0.0),), delivered=("a", "d", "never")))
    assert [i.token for i in await journal.pending(10)] == ["b", "c"]
    await journal.append(Batch((), delivered=("a", "b", "c")))
    assert await (await ground.open()).pending(10) == []
