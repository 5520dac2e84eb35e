"""Where webhooks may point, however the address is written."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.wire.errors import BadRequest, ClutchError, NotAllowed, Unavailable
from clutch.workloads.experiment.library.addresses import (
    METADATA,
    Target,
    allowed_addresses,
    is_refused,
    parse_target,
    resolve,
)
from clutch.workloads.experiment.library.delivering import judge

LINK_LOCAL = st.ip_addresses(v=4, network="169.254.0.0/16") | st.ip_addresses(v=6, network="fe80::/10")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "8.8.8.8", "100.64.0.1", "::1", "fd00::1", "2606:4700::1",
        "::ffff:127.0.0.1", "64:ff9b::808:808",
    ],
)  # fmt: skip
def test_servers_of_ones_own_are_allowed(address: str) -> None:
    assert not is_refused(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *sorted(map(str, METADATA)), "0.0.0.0", "::", "224.0.0.1", "ff02::1", "fe80::1", "fe80::1%eth0",
        "::ffff:169.254.169.254", "::ffff:0.0.0.0", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:100.100.100.200",
    ],
)  # fmt: skip
def test_servers_that_hand_out_credentials_are_not(address: str) -> None:
    assert is_refused(ipaddress.ip_address(address))


@given(LINK_LOCAL)
def test_nothing_link_local_is_reached_in_whatever_wrapping(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert is_refused(address)
    if isinstance(address, ipaddress.IPv4Address):
        for wrapped in (f"::ffff:{address}", f"64:ff9b::{address}"):
            assert is_refused(ipaddress.ip_address(wrapped))
        with pytest.raises(NotAllowed):
            parse_target(f"http://{address}:80/x")
        with pytest.raises(NotAllowed):
            parse_target(f"http://[::ffff:{address}]/x")


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("https://a.example", "https://a.example", Target("https", "a.example", 443, "/")),
        ("http://A.example:8080/p/q?x=%20", "http://a.example:8080", Target("http", "a.example", 8080, "/p/q?x=%20")),
        ("http://[::1]:9/?a", "http://[::1]:9", Target("http", "::1", 9, "/?a")),
        ("http://h:443/", "http://h:443", Target("http", "h", 443, "/")),
    ],
)
def test_an_address_in_its_parts(url: str, origin: str, target: Target) -> None:
    assert parse_target(url) == target
    assert target.origin == origin


@given(st.text(max_size=40) | st.text(max_size=30).map(lambda rest: f"http://{rest}"))
def test_whatever_is_written_is_a_target_or_an_error_of_ours(url: str) -> None:
    try:
        target = parse_target(url)
    except (BadRequest, NotAllowed) as error:
        assert error.next_step
        return
    assert target.host and 0 < target.port < 65536 and target.path.startswith("/")
    assert "\r" not in url and "\n" not in url and "@" not in target.host


async def test_a_name_is_refused_if_one_of_its_addresses_is() -> None:
    async def answers(*found: str) -> list[str]:
        async def resolver(host: str, port: int) -> list[str]:
            return list(found)

        return await allowed_addresses(Target("http", "h", 80, "/"), resolver)

    assert await answers("10.0.0.1", "::1") == ["10.0.0.1", "::1"]
    with pytest.raises(NotAllowed):
        await answers("10.0.0.1", "fe80::1%eth0")
    with pytest.raises(NotAllowed):
        await answers("169.254.169.254")


async def test_a_name_is_resolved_by_the_machine() -> None:
    assert await resolve("127.0.0.1", 80) == ["127.0.0.1"]
    hidden = Target("http", "2852039166", 80, "/")  # 169.254.169.254, as one number
    with pytest.raises((NotAllowed, Unavailable)):
        await allowed_addresses(hidden, resolve)
    with pytest.raises(Unavailable):
        await resolve("a..b", 80)


@given(st.integers(100, 599))
def test_an_answer_is_taken_refused_or_tried_again(status: int) -> None:
    answer = judge(status)
    assert (not answer.error) == (200 <= status < 300)
    assert answer.again == (status in (408, 425, 429) or status >= 500)


def test_every_error_here_is_one_of_ours() -> None:
    with pytest.raises(ClutchError):
        parse_target("http://[::ffff:169.254.169.254]/")
