"""How versions are named, what a label is, how a message is signed: pure rules of the library."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.sdk import webhooks
from clutch.wire.errors import BadRequest, NotAuthenticated, NotFound, TooLarge
from clutch.wire.experiment_words import ExperimentNews
from clutch.wire.library import (
    LATEST,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    WebhookMessage,
    is_signed,
    number_of,
    sign,
    split_version,
)
from clutch.workloads.experiment.library.messages import escaped, slack_of
from clutch.workloads.experiment.library.rules import (
    check_alias,
    check_json,
    check_labels,
    check_metrics,
    check_version,
    joined,
    parted,
    the_one,
)

LABELS = st.lists(
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P"), exclude_characters=","), min_size=1, max_size=64),
    max_size=32,
)


@given(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z"), st.integers(1, 10**17))
def test_a_version_is_named_in_three_ways(name: str, number: int) -> None:
    assert split_version(name) == (name, LATEST)
    assert split_version(f"{name}:{number}") == (name, str(number))
    assert number_of(str(number)) == number
    assert split_version(f"{name}:best") == (name, "best") and number_of("best") is None


@pytest.mark.parametrize("word", ["0", "01", "-1", "١", "1.5", "", "9" * 30])
def test_what_is_no_number_is_none(word: str) -> None:
    assert number_of(word) is None


@pytest.mark.parametrize("word", ["best", "prod", "v1", "1a", "a.b-c_d"])
def test_a_word_may_be_an_alias(word: str) -> None:
    assert check_alias(word) == word == check_version(word)


@pytest.mark.parametrize("word", ["latest", "3", "03", "", "a:b", "a/b", " ", "x" * 200])
def test_what_means_something_else_is_no_alias(word: str) -> None:
    with pytest.raises(BadRequest):
        check_alias(word)


@given(LABELS)
def test_labels_come_back_as_they_were_each_once(labels: list[str]) -> None:
    stored = check_labels(labels)
    assert parted(stored) == tuple(dict.fromkeys(labels))
    assert joined(parted(stored)) == stored
    for label in labels:
        assert f",{label}," in stored


@pytest.mark.parametrize("labels", [["a,b"], [""], ["  "], ["x" * 65], ["a\nb"], ["a\x00"], ["\ud800"], ["l"] * 33])
def test_what_is_no_label_is_refused(labels: list[str]) -> None:
    with pytest.raises(BadRequest):
        check_labels(labels)


@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
)
def test_a_json_object_comes_back_or_is_refused(value: Mapping[str, object]) -> None:
    try:
        stored = check_json(value, "metadata")
    except BadRequest:
        assert "\\ud" in ascii(value) or any(abs(number) >= 2**63 for number in _numbers(value))
        return
    assert msgspec.json.decode(stored) == value
    assert "\x00" not in stored


def _numbers(value: object) -> list[int]:
    if isinstance(value, int):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [number for each in inner for number in _numbers(each)]


def test_what_is_too_large_or_no_number_is_refused() -> None:
    with pytest.raises(TooLarge):
        check_json({"x": "y" * 300_000}, "metadata")
    for metrics in ({"a": float("nan")}, {"a": float("inf")}, {"": 1.0}, {str(n): 1.0 for n in range(1001)}):
        with pytest.raises(BadRequest):
            check_metrics(metrics)


@given(st.text(min_size=1, max_size=3), st.lists(st.text(max_size=3), max_size=6, unique=True))
def test_the_one_that_is_meant(prefix: str, names: list[str]) -> None:
    found = sorted(name for name in names if name.startswith(prefix))
    if prefix in found or len(found) == 1:
        assert the_one(prefix, found, "model") == (prefix if prefix in found else found[0])
    else:
        with pytest.raises(NotFound if not found else BadRequest):
            the_one(prefix, found, "model")


# -- signatures ---------------------------------------------------------------------------------------------------


def test_the_signature_is_the_one_that_others_compute() -> None:
    """By hand: HMAC-SHA256 over ``timestamp,body``, so that a receiver in any language can check it."""
    by_hand = hmac.new(b"secret", b'1700000000,{"a":1}', hashlib.sha256).hexdigest()
    assert sign("secret", "1700000000", b'{"a":1}') == f"sha256={by_hand}"


@given(st.text(min_size=1), st.integers(0, 10**12), st.binary(max_size=50), st.integers(0, 400))
def test_only_the_very_message_is_genuine(secret: str, at: int, body: bytes, where: int) -> None:
    if "\ud800" <= max(secret) <= "\udfff":
        return
    timestamp = str(at)
    headers = {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: sign(secret, timestamp, body)}
    webhooks.verify(secret, headers, body, now=at + 10.0)
    changed = bytearray(body + b"\0")
    changed[where % len(changed)] ^= 1
    for forged in (bytes(changed), body + b"x"):
        with pytest.raises(NotAuthenticated):
            webhooks.verify(secret, headers, forged, now=at + 10.0)
    assert not is_signed(secret + "x", timestamp, body, headers[SIGNATURE_HEADER])


@pytest.mark.parametrize("timestamp", ["", "-5", "1e9", "٣", "nan", "1" * 40])
def test_a_time_that_is_none_is_refused_though_it_is_signed(timestamp: str) -> None:
    headers = {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: sign("s", timestamp, b"")}
    with pytest.raises(NotAuthenticated):
        webhooks.verify("s", headers, b"", now=5.0)


def test_a_signature_of_any_characters_is_compared() -> None:
    with pytest.raises(NotAuthenticated):
        webhooks.verify("s", {TIMESTAMP_HEADER: "5", SIGNATURE_HEADER: "sha256=ü"}, b"", now=5.0)


def test_a_genuine_message_of_another_format_is_said_to_be_one() -> None:
    headers = {TIMESTAMP_HEADER.upper(): "5", SIGNATURE_HEADER.lower(): sign("s", "5", b'{"text":"x"}')}
    with pytest.raises(BadRequest, match="plain"):
        webhooks.read("s", headers, b'{"text":"x"}', now=5.0)


@given(st.text(max_size=20))
def test_nothing_in_a_name_is_markup_for_slack(name: str) -> None:
    change = ExperimentNews(
        experiment="e", name=name, workspace="w", project="", owner="", state="failed", detail=name, at=1.0
    )
    shown = slack_of(change)
    assert "<" not in shown["text"] and ">" not in shown["text"]
    assert escaped(name) in shown["text"] or not name


def test_the_message_has_the_fields_of_the_change() -> None:
    told = set(ExperimentNews.__struct_fields__) - {"webhooks"}
    assert told <= set(WebhookMessage.__struct_fields__)
