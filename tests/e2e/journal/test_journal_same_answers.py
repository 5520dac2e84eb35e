"""A random life, lived on every store at once: each answer and each refusal must be the same everywhere."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from clutch.backends.journal.base import FullJournal
from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.testing.journal_suite import node, task
from clutch.wire.errors import ClutchError
from clutch.wire.journal import Batch, Gone, OutboxItem, Row, Snapshot

Address = Callable[[str], Awaitable[str]]
Open = Callable[[str], Awaitable[FullJournal]]


class Life:
    """Draws one call after another. Terms and indexes are tracked from the first store's answers."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.term, self.last = 0, 0

    def batch(self) -> Batch:
        chance = self.chance
        first = self.last + 1 + (chance.random() < 0.05)
        term = self.term - (chance.random() < 0.05)
        rows = tuple(
            Row(n, term, chance.uniform(-1e9, 1e9), chance.choice(("api", "ü", "")), "Kind", n % 3, chance.randbytes(9))
            for n in range(first, first + chance.randint(0, 6))
        )
        views: list[Any] = []
        for _ in range(chance.randint(0, 5)):
            key = f"k{chance.randint(0, 8)}"
            put = task(
                key, state=chance.choice("abÄ漢"), priority=chance.randint(-2, 2), name=chance.choice(("x", "Y"))
            )
            views.append(chance.choice((put, put, Gone("tasks", key), node(key), Gone("nodes", key))))
        if chance.random() < 0.03:
            views.append(task("bad", name="\0"))
        tokens = [f"o{chance.randint(0, 5)}" for _ in range(3)]
        waiting = tuple(OutboxItem(token, "k", chance.random(), b"p") for token in tokens[: chance.randint(0, 2)])
        return Batch(rows, tuple(views), waiting, tuple(tokens[: chance.randint(0, 1)]))

    def call(self) -> tuple[str, tuple[Any, ...]]:
        chance = self.chance
        where: dict[str, Any] = chance.choice(({}, {"state": "漢"}, {"priority": 1}, {"nope": 1}))
        order = chance.choice(("key", "-key", "state", "-priority", "name", "nope"))
        after = chance.choice(("", "", "k3", "k9"))
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("read", (chance.randint(0, self.last + 2), chance.randint(1, 20))),
            ("page", (chance.choice(("tasks", "nodes", "what")), where, order, after, chance.randint(0, 5))),
            ("view", ("tasks", f"k{chance.randint(0, 8)}")),
            ("pending", (chance.randint(1, 5),)),
            ("save_snapshot", (Snapshot(self.last - chance.randint(-1, 3), 1, chance.randbytes(20)),)),
            ("load_snapshot", ()),
            ("forget", (chance.randint(0, self.last + 1),)),
            ("lead", (chance.choice(("a", "a", "b")), 60.0)),
            ("renew", (60.0,)),
            ("resign", ()),
        ]
        weights = [4, 6, 3, 2, 1, 1, 0.5, 1, 1, 0.3]
        return ("append", (self.batch(),)) if chance.random() < 0.5 else chance.choices(calls, weights)[0]


async def answer(journal: FullJournal, name: str, arguments: tuple[Any, ...]) -> object:
    try:
        return await getattr(journal, name)(*arguments)
    except ClutchError as error:
        return type(error)


@pytest.mark.parametrize("seed", range(6))
async def test_every_store_gives_the_same_answers(new_address: Address, opened: Open, seed: int) -> None:
    stores = [
        MemoryJournal(MemoryStore(lambda: 0.0)),
        await opened(await new_address("sqlite")),
        await opened(await new_address("postgres")),
    ]
    life = Life(seed)
    kinds = set()
    for step in range(250):
        name, arguments = life.call() if step else ("lead", ("a", 60.0))
        answers = [await answer(store, name, arguments) for store in stores]
        assert answers[1] == answers[0], f"step {step}: {name}{arguments}"
        assert answers[2] == answers[0], f"step {step}: {name}{arguments}"
        kinds.add((name, isinstance(answers[0], type)))
        if name == "lead" and not isinstance(answers[0], type):
            life.term = answers[0].term  # type: ignore[attr-defined]
        if name == "append" and isinstance(answers[0], int):
            life.last = answers[0]
    assert life.last > 50, "the life was too quiet to prove anything"
    assert {("append", True), ("append", False), ("page", True), ("page", False)} <= kinds
