"""The board of names as a pure thing: any story of adds, renewals, removals and time, against a simple model."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.master.push.name_board import GONE_REMEMBERED, Board, Tenure
from clutch.master.push.names import first_token
from clutch.wire.errors import Conflict, NotFound, Stale

NAMES = ("a", "a/b", "b")
MOVES = st.lists(
    st.tuples(st.sampled_from(["add", "replace", "renew", "remove", "stale"]), st.sampled_from(NAMES), st.floats(0, 2)),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(moves=MOVES, looks=st.sets(st.integers(0, 40)))
def test_any_story(moves: list[tuple[str, str, float]], looks: set[int]) -> None:
    """One holder a name, tokens grow, only the holder changes it; a watcher that looks now and then sees the truth."""
    board, now = Board(100), 0.0
    model: dict[str, tuple[int, float]] = {}
    highest, seen, version = 100, {}, 0
    for number, (move, name, passes) in enumerate(moves):
        now += passes
        board.expire(now)
        model = {n: (token, until) for n, (token, until) in model.items() if until >= now}
        held = board.get(name)
        assert {n for n in NAMES if board.get(n)} == set(model)
        try:
            if move in ("add", "replace"):
                made = board.adding(Tenure(name, b"%d" % number, 0, 3.0), move == "replace")
                assert made.token > highest and (move == "replace" or name not in model)
                highest = made.token
                board.put(made, now)
                model[name] = (made.token, now + 3.0)
            elif move == "renew":
                token = model.get(name, (0, 0.0))[0]
                board.put(board.renewing(name, token, None), now)
                assert name in model
                model[name] = (token, now + 3.0)
            elif move == "remove":
                board.removing(name, model.get(name, (0, 0.0))[0])
                board.drop(name)
                del model[name]
            else:
                board.renewing(name, highest + 1, b"not mine")
        except Conflict:
            assert move == "add" and held is not None
        except (Stale, NotFound):
            assert move == "stale" or name not in model
        if number in looks:
            changes = board.changes("", version)
            assert changes is not None
            for changed, tenure in changes:
                seen.pop(changed, None)
                if tenure is not None:
                    seen[changed] = tenure.token
            version = board.version
            assert seen == {n: token for n, (token, _) in model.items()}


def test_the_same_add_again_is_the_same_tenure() -> None:
    board = Board(0)
    first = board.adding(Tenure("n", b"1", 0, None, "key"), False)
    board.put(first, 0.0)
    assert board.adding(Tenure("n", b"1", 0, None, "key"), False) == first
    other = board.adding(Tenure("n", b"1", 0, None, "other"), True)
    assert other.token > first.token


def test_a_watcher_that_slept_too_long_is_given_everything() -> None:
    board = Board(0)
    board.put(board.adding(Tenure("stays", b"", 0), False), 0.0)
    slept = board.version
    for number in range(3 * GONE_REMEMBERED):
        board.put(board.adding(Tenure(f"n/{number}", b"", 0), False), 0.0)
        board.drop(f"n/{number}")
    assert board.changes("", slept) is None and board.changes("", board.version + 1) is None
    assert board.changes("", board.version) == []
    assert len(board._changed) < 3 * GONE_REMEMBERED


def test_tokens_grow_over_terms_and_generations() -> None:
    made = [first_token(g, t) for g, t in ((0, 1), (0, 2), (0, 1_000_000), (1, 1), (2, 0))]
    assert made == sorted(made) and made[-1] < 2**63
