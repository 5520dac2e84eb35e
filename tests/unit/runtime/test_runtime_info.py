"""What a member reads from its environment."""

from __future__ import annotations

import pytest

from clutch.runtime import boot
from clutch.runtime.info import Info, read_info
from clutch.wire.errors import BadRequest
from clutch.wire.push import BOOT_CLUSTER, BOOT_REFUSED


def test_everything_an_agent_writes_is_read() -> None:
    info = read_info(
        {
            "CLUTCH_TASK": "t1", "CLUTCH_ROLE": "worker", "CLUTCH_RANK": "3", "CLUTCH_FENCE": "g0e1i2",
            "CLUTCH_MEMBERS": "4", "CLUTCH_NODE": "n1", "CLUTCH_POOL": "p", "CLUTCH_MASTERS": "http://a:1, http://b:2,",
            "CLUTCH_CA_FILE": "/ca", "CLUTCH_TOKEN": "secret", "CLUTCH_CHECKPOINT": "c", "CLUTCH_CODE": "sha256:00",
            "CLUTCH_RENDEZVOUS": "1", "CLUTCH_SLOTS": "0,5", "CLUTCH_LEASE": "7", "CLUTCH_PORT_0": "80",
            "CLUTCH_PORT_1": "81", "CLUTCH_PORT_3": "83", "CLUTCH_ADDRESS": "10.0.0.1", "CLUTCH_MEET_WITHIN_S": "2.5",
        }
    )  # fmt: skip
    assert info == Info(
        task="t1", role="worker", role_rank=3, fence="g0e1i2", members=4, node="n1", pool="p",
        masters=("http://a:1", "http://b:2"), ca_file="/ca", token="secret", checkpoint="c", code="sha256:00",
        rendezvous=True, slots=(0, 5), lease_number=7, ports=(80, 81), address="10.0.0.1", meet_within_s=2.5,
    )  # fmt: skip
    assert info.on_cluster and "secret" not in repr(info)


def test_off_the_cluster_there_is_nobody_to_talk_to() -> None:
    assert read_info({}) == Info() and not Info().on_cluster


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CLUTCH_RANK", "x"),
        ("CLUTCH_RANK", "-1"),
        ("CLUTCH_RANK", "9" * 40),
        ("CLUTCH_SLOTS", "1,b"),
        ("CLUTCH_PORT_0", "²"),
        ("CLUTCH_MEET_WITHIN_S", "nan"),
        ("CLUTCH_MEET_WITHIN_S", "0"),
        ("CLUTCH_MEET_WITHIN_S", "soon"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name: str, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_info({name: said})
    assert name in caught.value.object


def test_the_exit_codes_are_the_documented_ones() -> None:
    assert (boot.BOOT_CLUSTER, boot.BOOT_REFUSED) == (BOOT_CLUSTER, BOOT_REFUSED)
