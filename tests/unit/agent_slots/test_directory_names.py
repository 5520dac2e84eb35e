"""Names of members' directories, and the facts of control groups: the pure parts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clutch.agent import shim
from clutch.agent.brain import Brain
from clutch.agent.directory import MemberDirectories, as_found, is_held, key_of, name_of
from clutch.backends.containers import shims
from clutch.backends.containers.base import Key
from clutch.backends.containers.cgroups import AGENT_LEAF, Cgroups, own_groups
from clutch.wire.containers import ContainerSpec, ExitRecord, Limits, Observed, lease_environment
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.messages import Exit, ExitCause, MemberStatus
from clutch.wire.resources import ARTIFICIAL, CPU, CUDA, ROCM, Capacity, Slot

texts = st.text(max_size=300)
keys = st.builds(
    lambda task, role, rank, g, e, i: Key(MemberId(TaskId(task), role, rank), Fence(g, e, i)),
    texts, texts, st.integers(0, 10**6), *[st.integers(0, 10**9)] * 3,
)  # fmt: skip


@given(keys, keys)
@example(Key(MemberId(TaskId("a~b"), "c", 0), Fence(0, 1, 1)), Key(MemberId(TaskId("a"), "b~c", 0), Fence(0, 1, 1)))
def test_a_name_is_safe_and_of_one_member_only(one: Key, other: Key) -> None:
    name = name_of(one)
    assert len(name.encode()) <= 255 and not name.startswith(".") and name.isascii()
    assert "/" not in name and "\0" not in name and name not in ("", ".", "..")
    assert key_of(name) in (one, None)
    assert (name == name_of(other)) == (one == other)


@given(keys)
def test_a_short_name_says_whom_it_is_for(key: Key) -> None:
    if len(name_of(key)) < 150:
        assert key_of(name_of(key)) == key


@pytest.mark.parametrize("name", ["x", "a~b~c~d", "a~main~0~g1e1i1~", "a~main~00~g1e1i1", "%2f~main~0~g1e1i1", "~~~~"])
def test_foreign_names_are_nobodys(name: str) -> None:
    assert key_of(name) is None


def test_foreign_things_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    directories = MemberDirectories(tmp_path)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert directories.found() == []
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_directory_is_claimed_once_and_never_over_anything(tmp_path: Path) -> None:
    directories = MemberDirectories(tmp_path)
    spec = ContainerSpec(MemberId(TaskId("t"), "main", 0), Fence(0, 1, 1), ("true",), "/")
    key = Key(spec.member, spec.fence)
    claim = directories.claim(spec, (), ())
    assert claim is not None and claim.path == directories.path(key)
    assert is_held(claim.path) and directories.lost(key) is None
    assert directories.claim(spec, (), ()) is None
    for descriptor in (claim.lock, claim.wake, claim.orders):
        os.close(descriptor)
    lost = directories.lost(key)
    assert lost is not None and lost.cause is ExitCause.NEVER_STARTED
    assert directories.claim(spec, (), ()) is None  # whoever began it is gone; it still had its start
    directories.remove(key)
    directories.path(key).mkdir()  # an empty directory could be renamed over
    assert directories.claim(spec, (), ()) is None
    assert [path.name for path in tmp_path.iterdir()] == [name_of(key)]  # nothing left aside


def test_what_a_dead_starter_left_aside_is_cleared_in_time(tmp_path: Path) -> None:
    directories = MemberDirectories(tmp_path)
    for name in (".new-1-2-3", ".gone-1-2-3"):
        (tmp_path / name / "output").mkdir(parents=True)
    assert directories.found() == []
    assert [path.name for path in tmp_path.iterdir()] == [".new-1-2-3"]  # a starter may still be at work
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    assert directories.found() == [] and list(tmp_path.iterdir()) == []


def test_a_brain_begins_with_what_is_on_the_machine() -> None:
    one, two = MemberId(TaskId("t"), "main", 0), MemberId(TaskId("t"), "main", 1)
    fence = Fence(0, 1, 1)
    record = ExitRecord(3, ExitCause.OWN, stdout_bytes=10, stderr_bytes=5)
    seen = [Observed(one, fence, MemberStatus.RUNNING), Observed(two, fence, MemberStatus.EXITED, record)]
    brain = Brain(NodeId("n"), PoolName("p"), "s", Capacity(), as_found(seen))
    assert [(m.member, m.status, m.exit) for m in brain.report().report.members] == [
        (one, MemberStatus.RUNNING, None),
        (two, MemberStatus.EXITED, Exit(3, ExitCause.OWN, 0, 15)),
    ]


def test_both_sides_of_a_directory_use_the_same_names() -> None:
    """The process backend may not import the shim; it must still mean the same files."""
    assert (shims.WAKE, shims.ORDERS) == (shim.WAKE, shim.ORDERS)
    assert (shim.LOCK_FD, shim.WAKE_FD, shim.ORDERS_FD) == (3, 4, 5)


def test_a_lease_shows_only_its_devices() -> None:
    slots = (Slot(4, CUDA, "GPU-a"), Slot(1, CPU), Slot(7, CUDA), Slot(2, ROCM, "GPU-r"), Slot(0, ARTIFICIAL))
    assert lease_environment(slots) == {"CUDA_VISIBLE_DEVICES": "GPU-a,7", "ROCR_VISIBLE_DEVICES": "GPU-r"}
    assert lease_environment(()) == {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


# -- control groups -----------------------------------------------------------------------------------------------

MIXED_CGROUP = "4:memory:/jobs/7\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/user/a\n"
MIXED_MOUNTS = (
    "20 1 0:1 / / rw - ext4 /dev/a rw\n"
    "30 20 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 20 0:3 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 20 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def test_where_a_process_is_with_both_versions() -> None:
    found = own_groups(MIXED_CGROUP, MIXED_MOUNTS)
    assert found["memory"] == Path("/sys/fs/cgroup/memory/jobs/7")
    assert found["cpu"] == found["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert found[""] == Path("/sys/fs/cgroup/unified/user/a")


def test_where_a_process_is_inside_a_container() -> None:
    mounts = "40 1 0:9 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
    assert own_groups("0::/docker/abc\n", mounts) == {"": Path("/sys/fs/cgroup")}
    assert own_groups("0::/../elsewhere\n", mounts) == {}
    assert own_groups("0::/\n", "40 1 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n") == {"": Path("/sys/fs/cgroup")}


def test_limits_of_version_two(tmp_path: Path) -> None:
    """Plain files stand for the kernel's; what is written where is what counts."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "clutch-x").mkdir()
    for name in ("memory.events", "cgroup.kill"):
        (tmp_path / "clutch-x" / name).touch()
    group = Cgroups({"": tmp_path / AGENT_LEAF}).make("clutch-x", Limits(millicpus=1500, memory_bytes=2**30))
    made = tmp_path / "clutch-x"
    assert group.notices == () and group.paths == (str(made),) and (group.into, group.joins) == (str(made), ())
    assert (made / "memory.max").read_text() == str(2**30) and (made / "memory.swap.max").read_text() == "0"
    assert (made / "memory.oom.group").read_text() == "1"
    assert (made / "cpu.max").read_text() == "150000 100000"
    assert (group.oom_file, group.kill_file) == (f"{made}/memory.events", f"{made}/cgroup.kill")


def test_a_hierarchy_that_refuses_is_a_notice() -> None:
    group = Cgroups({"": Path("/proc/1/no-such-hierarchy")}).make("x", Limits(millicpus=100, memory_bytes=1))
    assert group.paths == () and len(group.notices) == 2
    assert all("not enforced here" in notice and "No such file" in notice for notice in group.notices)
