"""Keys, prefixes and ranges: what is refused, and that whatever is accepted stays inside."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.backends.blobs.base import WHOLE_BYTES_MAX
from clutch.backends.blobs.keys import KEY_BYTES_MAX, check_key, check_prefix, check_range, clamp_range, is_key
from clutch.wire.errors import BadRequest, TooLarge


@given(st.text(max_size=40))
def test_an_accepted_key_stays_below_its_root(text: str) -> None:
    if not is_key(text):
        with pytest.raises(BadRequest):
            check_key(text)
        return
    check_key(text)
    path = PurePosixPath("/root") / text
    assert ".." not in path.parts
    assert path.parts[:2] == ("/", "root")
    assert str(path) == f"/root/{text}", "a file system would see another name"
    assert len(text.encode()) <= KEY_BYTES_MAX


@pytest.mark.parametrize(
    ("key", "why"),
    [("", "empty"), ("a\0", "control"), ("a\\b", "backslash"), ("e\u0301", "NFC"), ("x" * 600, "600 bytes")],
)
def test_a_refusal_says_why_and_what_to_do(key: str, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_key(key)
    assert why in caught.value.cause
    assert "A key is" in caught.value.next_step
    assert caught.value.object.isprintable()


def test_a_prefix_is_a_folder() -> None:
    assert check_prefix("") == ""
    assert check_prefix("a/b") == check_prefix("a/b/") == "a/b"
    for bad in ("/", "//", "a//", "/a"):
        with pytest.raises(BadRequest):
            check_prefix(bad)


def test_ranges() -> None:
    assert clamp_range("k", 0, None, 10) == (0, 10)
    assert clamp_range("k", 3, 99, 10) == (3, 10)
    assert clamp_range("k", 10, None, 10) == (10, 10)
    with pytest.raises(BadRequest):
        clamp_range("k", 11, None, 10)
    with pytest.raises(BadRequest):
        check_range("k", 2, 1)
    with pytest.raises(TooLarge) as caught:
        clamp_range("k", 0, None, WHOLE_BYTES_MAX + 1)
    assert "get_file" in caught.value.next_step
