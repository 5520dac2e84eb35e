"""What a member's command finds when it begins: its user, its limits, nothing of ours, no secret on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from shim_ground import ShimGround, key_of

from clutch.backends.containers.cgroups import Cgroups, Group, own_groups
from clutch.wire.containers import Limits, RunAs
from clutch.wire.messages import ExitCause


async def said(ground: ShimGround, script: str, **changes: object) -> bytes:
    containers = ground.open()
    spec = replace(ground.sh("asked", script), **changes)
    await containers.start(spec)
    record = await containers.wait(key_of(spec), 30.0)
    assert record.cause is ExitCause.OWN and record.code == 0, record
    return ground.stdout(key_of(spec))


async def test_signals_are_as_in_a_fresh_login(ground: ShimGround) -> None:
    """Python ignores SIGPIPE and the shim some more; a command that inherited that would never notice a closed pipe."""
    lines = (await said(ground, "exec cat /proc/self/status")).decode().splitlines()
    masks = {
        name: int(mask, 16)
        for name, mask in (line.split(":") for line in lines if line.startswith("Sig") and "/" not in line)
    }
    library_s_own = 0b11 << 31  # signals 32 and 33 are the C library's
    assert (masks["SigBlk"], masks["SigIgn"] & ~library_s_own) == (0, 0)


async def test_it_leads_its_own_session_and_holds_no_descriptor_of_ours(ground: ShimGround) -> None:
    script = "import os; print(sorted(os.listdir('/proc/self/fd')), os.getpid() == os.getpgrp() == os.getsid(0))"
    containers = ground.open()
    spec = ground.spec("alone", sys.executable, "-S", "-c", script)
    stray = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(stray, True)  # as agents may inherit some from whoever started them
    await containers.start(spec)
    os.close(stray)
    await containers.wait(key_of(spec), 30.0)
    assert ground.stdout(key_of(spec)) == b"['0', '1', '2', '3'] True\n"  # 3 is the listing itself


async def test_limits_of_a_process(ground: ShimGround) -> None:
    limits = Limits(open_files=123, core_bytes=0)
    assert await said(ground, "ulimit -n; ulimit -Hn; ulimit -c", limits=limits) == b"123\n123\n0\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
async def test_it_runs_as_the_given_user(ground: ShimGround) -> None:
    who = RunAs(uid=65534, gid=65533, groups=(65533, 65532))
    with tempfile.TemporaryDirectory() as folder:  # not in the test's own, where only its owner may go
        os.chown(folder, who.uid, who.gid)
        script = "id -u; id -g; id -G; echo mine > file; stat -c %u file"
        answer = await said(ground, script, run_as=who, cwd=folder)
    assert answer == b"65534\n65533\n65533 65532\n65534\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
async def test_another_users_member_dies_with_its_shim_too(ground: ShimGround) -> None:
    containers = ground.open()
    spec = replace(ground.sh("foreign", "echo up; exec sleep 600"), run_as=RunAs(65534, 65534), cwd="/")
    await containers.start(spec)
    while ground.stdout(key_of(spec)) != b"up\n":
        assert await containers.changed(key_of(spec), 30.0)
    ground.kill_shim(key_of(spec))
    assert (await containers.wait(key_of(spec), 30.0)).cause is ExitCause.MACHINE


async def test_a_user_it_may_not_become_is_a_reason(ground: ShimGround) -> None:
    containers = ground.open()
    spec = replace(ground.sh("nobody", "true"), run_as=RunAs(uid=1, gid=1, groups=(2**31,) * 70_000))
    await containers.start(spec)
    record = await containers.wait(key_of(spec), 30.0)
    assert record.cause is ExitCause.NEVER_STARTED and "user 1, group 1" in record.reason, record


async def test_the_environment_is_never_on_disk(ground: ShimGround) -> None:
    containers = ground.open()
    spec = ground.sh("secretive", 'until [ -e go ]; do sleep 0.02; done; test -n "$TOKEN"')
    spec = replace(spec, environment={**spec.environment, "TOKEN": "s3cr3t-value"})
    await containers.start(spec)
    files = 0
    for path in ground.path(key_of(spec)).rglob("*"):
        if path.is_file():
            files += 1
            assert b"s3cr3t-value" not in path.read_bytes(), path
    (ground.folder / "go").touch()
    assert (await containers.wait(key_of(spec), 30.0)).code == 0
    assert files >= 3
    for path in ground.path(key_of(spec)).rglob("*"):
        assert path.is_dir() or path.is_fifo() or b"s3cr3t-value" not in path.read_bytes()


async def test_nobody_else_may_look_into_a_directory(ground: ShimGround) -> None:
    containers = ground.open()
    spec = ground.sh("private", "true")
    await containers.start(spec)
    await containers.wait(key_of(spec), 30.0)
    assert ground.directories.root.stat().st_mode & 0o077 == 0
    assert ground.path(key_of(spec)).stat().st_mode & 0o077 == 0


async def test_a_large_environment_and_many_words(ground: ShimGround) -> None:
    """More than a pipe holds."""
    containers = ground.open()
    spec = ground.spec("large", "sh", "-c", "echo $# ${#A0}", "sh", *["w" * 100] * 2000)
    spec = replace(spec, environment={**spec.environment, **{f"A{n}": "v" * 10_000 for n in range(40)}})
    await containers.start(spec)
    record = await containers.wait(key_of(spec), 30.0)
    assert record.code == 0, record
    assert ground.stdout(key_of(spec)) == b"2000 10000\n"


async def test_where_the_kernel_cannot_bear_it_in_its_group_it_moves_there(tmp_path: Path) -> None:
    """A plain folder stands for the group: nothing can be born in it, and what moves in leaves its trace."""
    tree = tmp_path / "tree"
    tree.mkdir()
    ground = ShimGround(tmp_path, Cgroups({"": tree}))
    containers = ground.open()
    spec = ground.sh("mover", "exit 4")
    await containers.start(spec)
    record = await containers.wait(key_of(spec), 30.0)
    assert (record.code, record.cause) == (4, ExitCause.OWN), record
    (group,) = tree.iterdir()
    assert (group / "cgroup.procs").read_bytes() == b"0"
    await ground.close()


class VanishingGroups(Cgroups):
    """Makes groups that are gone when a member wants to join them."""

    def make(self, name: str, limits: Limits) -> Group:
        return Group(joins=("/no/such/group/tasks",))


async def test_a_group_that_cannot_be_joined_is_a_reason(tmp_path: Path) -> None:
    """The limits that were promised are not there, so it does not run."""
    ground = ShimGround(tmp_path, VanishingGroups({}))
    containers = ground.open()
    spec = ground.sh("outsider", "echo ran >> marks")
    await containers.start(spec)
    record = await containers.wait(key_of(spec), 30.0)
    assert record.cause is ExitCause.NEVER_STARTED and "its cgroup: No such file" in record.reason, record
    assert not (ground.folder / "marks").exists()
    await ground.close()


JOINED = """
import sys
from pathlib import Path
from clutch.backends.containers.cgroups import Cgroups
group, controller = Path(sys.argv[1]), sys.argv[2]
(group / "cgroup.procs").write_text("0")
groups = Cgroups({"": group})
groups.enable(controller)
groups.enable(controller)
print((group / "cgroup.subtree_control").read_text().split(), Path("/proc/self/cgroup").read_text().split()[-1])
"""


@pytest.fixture
def group_with_controller() -> Iterator[tuple[Path, str]]:
    """A fresh group on the kernel's own version 2 tree, and a controller that its parent lets it have."""
    parent = own_groups(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()).get("")
    lent = ""
    try:
        assert parent is not None, "there is no tree of version 2"
        control = parent / "cgroup.subtree_control"
        if not control.read_text().strip():
            lent = (parent / "cgroup.controllers").read_text().split()[0]
            control.write_text(f"+{lent}")
        group = parent / f"clutch-test-{os.getpid()}"
        group.mkdir()
    except (OSError, AssertionError, IndexError) as refused:
        pytest.skip(f"no control groups of version 2 to try it on: {refused}")
    yield group, control.read_text().split()[0]
    for path in (group / "clutch-agent", group):
        path.rmdir()
    if lent:
        control.write_text(f"-{lent}")


def test_an_agent_makes_room_for_controllers_of_version_two(group_with_controller: tuple[Path, str]) -> None:
    """It ends in a leaf of its group, because a group with processes of its own may not give controllers away."""
    group, controller = group_with_controller
    asked = subprocess.run([sys.executable, "-c", JOINED, str(group), controller], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith(f"['{controller}'] ") and asked.stdout.strip().endswith("/clutch-agent")
