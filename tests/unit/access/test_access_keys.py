"""Master keys, members' tokens, passwords, and how often one may guess."""

import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.master.access.keys import FILE, MasterKeys, load_keys, new_key
from clutch.master.access.passwords import check_password, hashed, matches
from clutch.master.access.throttle import FREE_FOR_ADDRESS, FREE_FOR_NAME, Throttle
from clutch.master.access.token_text import TASK_PREFIX, hash_of, new_token, read_task_token, task_token
from clutch.wire.access import TokenKind
from clutch.wire.errors import BadRequest, Corrupt, TooMany
from clutch.wire.ids import Fence, MemberId, TaskId

OLD, NEW = "o" * 32, "n" * 32
CHEAP = (4, 8, 1)


def test_old_keys_open_and_verify_and_the_newest_seals() -> None:
    old, both, new = MasterKeys((OLD,)), MasterKeys((NEW, OLD)), MasterKeys((NEW,))
    sealed, signed = old.seal(b"x", "here"), old.sign(b"m")
    assert both.open(old.newest, sealed, "here") == b"x" and both.signed(b"m", signed)
    assert both.newest == new.newest != old.newest
    assert new.open(both.newest, both.seal(b"y", "there"), "there") == b"y"
    assert not new.signed(b"m", signed)
    with pytest.raises(Corrupt):
        new.open(old.newest, sealed, "here")
    with pytest.raises(Corrupt):
        old.open(old.newest, sealed, "elsewhere")
    with pytest.raises(Corrupt):
        old.open(old.newest, sealed[:-1] + bytes([sealed[-1] ^ 1]), "here")
    with pytest.raises(Corrupt):
        old.open(old.newest, b"", "here")
    assert old.seal(b"x", "here") != sealed, "each time another nonce"
    assert OLD not in repr(both) and NEW not in repr(both)


def test_keys_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made = load_keys("", folder)
    path = folder / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_keys("", folder).newest == made.newest
    made.become(made.with_new())
    made.write(path)
    assert load_keys("", folder).newest == made.newest and len(path.read_text().split()) == 2
    path.chmod(0o640)
    with pytest.raises(BadRequest, match="others may read it"):
        load_keys("", folder)
    assert load_keys(f" {NEW} , {OLD}", folder).newest == MasterKeys((NEW,)).newest


@pytest.mark.parametrize("texts", [(), ("short",), ("x" * 31,), ("x" * 40 + "\n",), (new_key(), "")])
def test_what_is_no_master_key(texts: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest):
        MasterKeys(texts)


names = st.text(min_size=1, max_size=20)
members = st.builds(MemberId, names.map(TaskId), names, st.integers(0, 2**40))
fences = st.builds(Fence, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))


@given(members, fences)
def test_a_members_token_says_who_it_is(member: MemberId, fence: Fence) -> None:
    keys = MasterKeys((NEW,))
    token = task_token(member, fence, keys)
    assert read_task_token(token, keys) == (member, fence)
    assert read_task_token(token, MasterKeys((OLD,))) is None
    assert read_task_token(token, MasterKeys((OLD, NEW))) == (member, fence)


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_a_members_token_has_one_spelling(place: int, other: str) -> None:
    keys = MasterKeys((NEW,))
    token = task_token(MemberId(TaskId("t"), "main", 0), Fence(1, 2, 3), keys)
    place = len(TASK_PREFIX) + place % (len(token) - len(TASK_PREFIX))
    changed = token[:place] + other + token[place + 1 :]
    assert (read_task_token(changed, keys) is not None) == (changed == token)


def test_bits_that_mean_nothing_are_not_another_spelling() -> None:
    keys = MasterKeys((NEW,))
    token = task_token(MemberId(TaskId("t"), "main", 0), Fence(1, 2, 3), keys)
    alphabet = string.ascii_letters + string.digits + "-_"
    assert [last for last in alphabet if read_task_token(token[:-1] + last, keys) is not None] == [token[-1]]


@given(st.text(max_size=80))
def test_junk_is_nobodys_token(junk: str) -> None:
    assert read_task_token(TASK_PREFIX + junk, MasterKeys((NEW,))) is None


def test_tokens_say_their_kind_and_differ() -> None:
    made = {new_token(kind) for kind in TokenKind for _ in range(50)}
    assert len(made) == 50 * len(TokenKind)
    assert {len(hash_of(token)) for token in made} == {32}
    assert len({token[:9] for token in made}) == len(TokenKind)


def test_a_password_is_known_by_its_hash_alone() -> None:
    stored = hashed("correct horse", CHEAP)
    assert "correct" not in stored and stored != hashed("correct horse", CHEAP)
    assert matches("correct horse", stored), "at the cost it was made with, whatever it is today"
    for wrong in ("correct hors", "", "correct horse ", "x" * 5000):
        assert not matches(wrong, stored)
    assert not matches("", "", CHEAP) and not matches("anything", "nonsense", CHEAP)
    for wrong in ("short", "x" * 1025):
        with pytest.raises(BadRequest):
            check_password(wrong)


def test_a_user_who_does_not_exist_takes_as_long_to_refuse() -> None:
    def took(stored: str) -> float:
        began = time.process_time()
        assert not matches("wrong horse", stored)
        return time.process_time() - began

    stored = hashed("correct horse")
    assert stored.startswith("scrypt$15,8,3$"), "dear enough to guess"
    known, unknown = (min(took(each) for _ in range(2)) for each in (stored, ""))
    assert unknown > known / 3


def test_guessing_slows_down_for_one_name_at_one_place() -> None:
    throttle = Throttle()
    for _ in range(FREE_FOR_NAME):
        throttle.attempt("ada", "10.0.0.1", 0.0)
    with pytest.raises(TooMany, match="too many") as told:
        throttle.attempt("ada", "10.0.0.1", 0.5)
    assert told.value.next_step == "Try again in 1 s."
    throttle.attempt("ada", "10.0.0.2", 0.5)
    throttle.attempt("bob", "10.0.0.1", 0.5)
    at = 2.0
    for _ in range(10):  # each time it must wait longer
        throttle.attempt("ada", "10.0.0.1", at)
        with pytest.raises(TooMany):
            throttle.attempt("ada", "10.0.0.1", at + 1.9)
        at += 300.0
    with pytest.raises(TooMany):
        throttle.attempt("ada", "10.0.0.1", at - 100.0)
    throttle.attempt("ada", "10.0.0.1", at)
    for _ in range(2):  # an hour later it is forgotten
        throttle.attempt("ada", "10.0.0.1", at + 5000.0)


def test_who_is_right_begins_anew() -> None:
    throttle = Throttle()
    for _ in range(10 * FREE_FOR_ADDRESS):
        throttle.attempt("ada", "10.0.0.1", 0.0)
        throttle.succeeded("ada", "10.0.0.1")
    for _ in range(FREE_FOR_ADDRESS):
        throttle.attempt("", "10.0.0.1", 0.0)
    throttle.succeeded("", "10.0.0.1")
    throttle.attempt("", "10.0.0.1", 0.0)
    with pytest.raises(TooMany):
        throttle.attempt("bob", "10.0.0.1", 0.5)


def test_guessing_many_names_slows_down_too_and_memory_is_bounded() -> None:
    throttle = Throttle(remembered=100)
    for number in range(FREE_FOR_ADDRESS):
        throttle.attempt(f"u{number}", "10.0.0.1", 0.0)
    with pytest.raises(TooMany):
        throttle.attempt("new", "10.0.0.1", 0.5)
    for number in range(1000):
        throttle.attempt("ada", f"10.0.{number}", 0.0)
    assert len(throttle) == 100
