"""What a container is given and what it is not: images, mounts, limits, users, devices, addresses."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from clutch.backends.containers.base import Addresses, Doing, Wakes
from clutch.backends.containers.docker import answers
from clutch.backends.containers.docker_http import Refused
from clutch.backends.containers.docker_spec import DockerSettings, container_name
from clutch.testing import docker
from clutch.testing.bars import within
from clutch.testing.containers_suite import eventually
from clutch.testing.docker_ground import PATIENCE_S, DockerGround, key_of
from clutch.wire.containers import ContainerSpec, ExitRecord, Limits, Mount, Pull, RunAs, Usage
from clutch.wire.errors import BadRequest, Unavailable
from clutch.wire.messages import ExitCause, MemberStatus
from clutch.wire.resources import CUDA, Slot

UNSTARTED = (ExitCause.NEVER_STARTED, ExitCause.REFUSED)


async def run(ground: DockerGround, spec: ContainerSpec) -> tuple[ExitRecord, str]:
    containers = ground.open()
    await containers.start(spec)
    record = await containers.wait(key_of(spec), PATIENCE_S)
    return record, ground.output(key_of(spec))[0].decode()


# -- images -------------------------------------------------------------------------------------------------------


async def test_an_image_that_may_not_be_pulled_is_missing(ground: DockerGround) -> None:
    spec = replace(ground.sh("m", "true"), image="clutch-nowhere:1")
    record, _ = await run(ground, spec)
    assert record.cause is ExitCause.REFUSED and record.started_at == 0.0
    assert "clutch-nowhere:1 is not on this node" in record.reason


async def test_a_registry_that_does_not_answer_is_a_reason(ground: DockerGround) -> None:
    for pull in (Pull.MISSING, Pull.ALWAYS):
        spec = replace(ground.sh(f"m-{pull}", "true"), image="127.0.0.1:1/nothing:1", pull=pull)
        record, _ = await run(ground, spec)
        assert record.cause is ExitCause.NEVER_STARTED, record
        assert "127.0.0.1:1/nothing:1 could not be pulled" in record.reason and "refused" in record.reason


USER = "somebody:$2b$05$abcdefghijklmnopqrstuu8xaCxxL82bnl.UY74PMksDxIJShppPC"
"""The password is ``right``."""
REGISTRY = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/store}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: test, path: {folder}/users}}}}
"""


@pytest.fixture
def registry(tmp_path: Path, engine_socket: Path) -> Iterator[str]:
    """A registry with a password and one image; its address."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (Debian: apt-get install docker-registry)")
    if docker.given_socket() is not None:
        pytest.skip("an engine of DOCKER_HOST may not reach this machine's loopback")
    folder = tmp_path / "registry"
    folder.mkdir()
    (folder / "users").write_text(USER + "\n")
    process = None
    try:
        for port in range(35000 + os.getpid() % 5000, 45000, 97):
            (folder / "config").write_text(REGISTRY.format(folder=folder, port=port))
            process = subprocess.Popen([program, "serve", folder / "config"], stderr=subprocess.DEVNULL)
            if _serves(process, port):
                break
        address = f"127.0.0.1:{port}"
        client = [docker.docker_client(), "--host", f"unix://{engine_socket}", "--config", str(folder)]
        for words in (
            ["login", "--username", "somebody", "--password", "right", address],
            ["tag", docker.BUSYBOX, f"{address}/box:1"],
            ["push", f"{address}/box:1"],
            ["rmi", f"{address}/box:1"],
        ):
            done = subprocess.run([*client, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        yield address
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _serves(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5)
        except urllib.error.HTTPError as asked:
            asked.close()
            return asked.code == 401
        except OSError:
            time.sleep(0.01)
    return False


async def test_images_are_pulled_with_the_right_password_only(ground: DockerGround, registry: str) -> None:
    base = replace(ground.sh("m", "echo pulled"), image=f"{registry}/box:1", pull=Pull.MISSING)
    for name, auth in (("none", ""), ("wrong", "somebody:wrong"), ("stranger", "nobody:right")):
        record, _ = await run(ground, replace(base, member=replace(base.member, role=name), registry_auth=auth))
        assert record.cause in UNSTARTED, record
        assert "could not be pulled" in record.reason and "right" not in record.reason
    good = replace(base, registry_auth="somebody:right")
    record, said = await run(ground, good)
    assert (record.code, said) == (0, "pulled\n"), record
    secrets = [
        path for path in ground.directories.root.rglob("*") if path.is_file() and b"somebody" in path.read_bytes()
    ]
    assert secrets == []
    again = replace(base, member=replace(base.member, role="again"), pull=Pull.NEVER)
    assert (await run(ground, again))[0].code == 0  # it is here now
    ground.engine.ask("DELETE", f"/images/{registry}/box:1?force=1")


async def test_what_waits_for_an_image_says_so_and_can_be_ended(ground: DockerGround) -> None:
    """A registry that accepts and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    containers = ground.open()
    spec = replace(ground.sh("m", "true"), image=f"127.0.0.1:{port}/slow:1", pull=Pull.ALWAYS)
    started = await containers.start(spec)
    assert started.status is MemberStatus.STARTING
    await eventually(lambda: "pulling" in containers.doing(key_of(spec)) and "slow:1" in containers.doing(key_of(spec)))
    await containers.end(key_of(spec))
    record = await containers.wait(key_of(spec), PATIENCE_S)
    assert record.cause is ExitCause.ENDED and record.started_at == 0.0, record
    assert containers.doing(key_of(spec)) == ""
    server.close()


# -- what it is given ---------------------------------------------------------------------------------------------


async def test_mounts_shared_memory_and_limits(ground: DockerGround) -> None:
    inside = ground.folder.parent / "data"
    inside.mkdir()
    (inside / "file").write_text("given\n")
    writable = ground.folder.parent / "out"
    writable.mkdir()
    script = """
    cat /data/file; echo no > /data/file || echo kept; echo yes > /out/file
    df -m /dev/shm | tail -1 | while read a size rest; do echo shm $size; done; ulimit -n; ulimit -c
    """
    spec = replace(
        ground.sh("m", script),
        mounts=(Mount(str(inside), "/data"), Mount(str(writable), "/out", read_only=False)),
        shm_bytes=32 * 2**20,
        limits=Limits(open_files=1234, core_bytes=0),
    )
    record, said = await run(ground, spec)
    assert said.split("\n") == ["given", "kept", "shm 32", "1234", "0", ""], (said, record)
    assert (writable / "file").read_text() == "yes\n" and (inside / "file").read_text() == "given\n"


async def test_a_mount_that_is_not_there_is_a_reason(ground: DockerGround) -> None:
    record, _ = await run(ground, replace(ground.sh("m", "true"), mounts=(Mount("/no/such/folder", "/data"),)))
    assert record.cause in UNSTARTED and "/no/such/folder" in record.reason


async def test_a_mapped_user_has_no_privilege_and_cannot_get_one(ground: DockerGround) -> None:
    (ground.folder.parent).chmod(0o755)
    ground.folder.chmod(0o777)
    script = "id -u; id -g; id -G; grep -E 'CapEff|NoNewPrivs' /proc/self/status; touch mine"
    spec = replace(ground.sh("m", script), run_as=RunAs(4242, 4343, (4444,)))
    record, said = await run(ground, spec)
    assert said.split("\n")[:3] == ["4242", "4343", "4343 4444"], (said, record)
    assert "CapEff:\t0000000000000000" in said and "NoNewPrivs:\t1" in said
    assert (ground.folder / "mine").stat().st_uid == 4242


async def test_an_image_without_a_folder_of_the_node(ground: DockerGround) -> None:
    """No ``cwd``: the image's own."""
    record, said = await run(ground, replace(ground.sh("m", "pwd; ls"), cwd=""))
    assert (record.code, said.split("\n")[0]) == (0, "/"), record


async def test_a_gpu_that_the_engine_cannot_give_is_a_reason(ground: DockerGround) -> None:
    requesting = DockerGround(ground.folder.parent / "gpu", ground.socket, DockerSettings())
    spec = replace(requesting.sh("m", "echo ran"), slots=(Slot(0, CUDA, "GPU-00000000-0000-0000-0000-000000000000"),))
    record, said = await run(requesting, spec)
    await requesting.close()
    assert record.cause in UNSTARTED and said == "", record
    assert "NVIDIA" in record.reason or "nvidia" in record.reason


async def test_what_makes_no_sense_for_an_engine_is_refused(ground: DockerGround) -> None:
    good = ground.sh("m", "true")
    for bad in (
        replace(good, image=""),
        replace(good, registry_auth="no-colon"),
        replace(good, mounts=(Mount("relative", "/x"),)),
        replace(good, mounts=(Mount("/a", "/x"), Mount("/b", "/x/"))),
        replace(good, mounts=(Mount("/a", good.cwd),)),
    ):
        with pytest.raises(BadRequest):
            await ground.open().start(bad)
    assert await ground.open().found() == []


async def test_abilities_and_answers(ground: DockerGround, tmp_path: Path) -> None:
    containers = ground.open()
    assert isinstance(containers, Wakes) and isinstance(containers, Doing) and isinstance(containers, Addresses)
    assert await containers.address(key_of(ground.sh("m", "true"))) == "127.0.0.1"
    version = await answers(ground.socket)
    assert version is not None and version[0].isdigit()
    before = time.monotonic()
    assert await answers(tmp_path / "nothing.sock") is None
    assert time.monotonic() - before < within(3.0)


async def test_a_container_of_a_network_has_an_address(ground: DockerGround) -> None:
    """Reached from the node without a published port."""
    name = f"clutch-test-{os.getpid()}"
    subnet = f"10.231.{os.getpid() % 250}.0/24"
    body = {"Name": name, "Driver": "bridge", "Internal": True, "IPAM": {"Config": [{"Subnet": subnet}]}}
    try:
        ground.engine.ask("POST", "/networks/create", body)
    except Refused as refused:
        pytest.skip(f"this engine makes no networks: {refused}")
    apart = DockerGround(ground.folder.parent / "apart", ground.socket, DockerSettings(network=name))
    try:
        containers = apart.open()
        spec = apart.sh("m", "echo hello > index.html; httpd -f -p 8000 -h .")
        await containers.start(spec)
        await eventually(lambda: (apart.folder / "index.html").exists())
        address = await containers.address(key_of(spec))
        assert address.startswith("10.231.")
        await eventually(lambda: _fetched(f"http://{address}:8000/index.html") == b"hello\n")
        await containers.end(key_of(spec))
        await containers.wait(key_of(spec), PATIENCE_S)
        with pytest.raises(Unavailable):
            await containers.address(key_of(spec))
    finally:
        await apart.close()
        ground.engine.ask("DELETE", f"/networks/{name}")


def _fetched(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


# -- others' hands ------------------------------------------------------------------------------------------------


async def test_a_container_that_somebody_else_ends_is_no_failure_of_its_own(ground: DockerGround) -> None:
    containers = ground.open()
    for name, question, word in (
        ("killed", ("POST", "/kill?signal=KILL"), "not by us"),
        ("removed", ("DELETE", "?force=1"), ""),
    ):
        spec = ground.sh(name, "echo up; sleep 600")
        key = key_of(spec)
        await containers.start(spec)
        await eventually(lambda key=key: ground.output(key)[0] == b"up\n")  # type: ignore[misc]
        container = container_name(ground.directories.path(key))
        ground.engine.ask(question[0], f"/containers/{container}{question[1]}")
        record = await containers.wait(key, PATIENCE_S)
        assert (record.code, record.cause) == (-9, ExitCause.MACHINE) and word in record.reason, record


async def test_containers_of_a_deleted_folder_are_ended(ground: DockerGround) -> None:
    containers = ground.open()
    spec = ground.sh("m", "echo up; sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    await eventually(lambda: ground.output(key)[0] == b"up\n")
    ground.kill_keeper(key)
    shutil.rmtree(ground.directories.path(key))
    assert await ground.open().found() == []
    assert not ground.exists(key)


async def test_a_forgotten_member_leaves_nothing_in_the_engine(ground: DockerGround) -> None:
    containers = ground.open()
    spec = ground.sh("m", "echo done")
    await containers.start(spec)
    await containers.wait(key_of(spec), PATIENCE_S)
    await containers.forget(key_of(spec))
    await eventually(lambda: not ground.exists(key_of(spec)))  # its keeper may be just at it


# -- use ----------------------------------------------------------------------------------------------------------


async def test_an_engine_elsewhere_is_asked_for_use_and_a_container_may_end_meanwhile(ground: DockerGround) -> None:
    containers, spec = ground.open(), ground.sh("m", "while :; do :; done")
    key = key_of(spec)
    await containers.start(spec)
    await eventually(lambda: bool(ground.keeper(key)))
    ground.move_away(key)
    usage = await containers.usage(key)
    assert usage.cpu_s > 0.0 and usage.memory_bytes > 0 and usage.processes >= 1
    asking = asyncio.create_task(containers.usage(key))  # the engine looks twice, a second apart
    await containers.end(key)
    await containers.wait(key, PATIENCE_S)
    assert await asking == Usage(0.0, 0, 0)
