"""The pure parts of the Docker way: what an engine is asked, what its words mean, which bytes of its log are new."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clutch.backends.containers.docker_http import EngineGone, Stream
from clutch.backends.containers.docker_images import Progress, auth_header, pull_path
from clutch.backends.containers.docker_log import PART_BYTES, Break, Frames, LogPosition, stamp
from clutch.backends.containers.docker_spec import DockerSettings, Gpus, container_name, create_body
from clutch.backends.containers.docker_verdict import Seen, verdict
from clutch.testing import docker
from clutch.wire.containers import ContainerSpec, Limits, Mount, RunAs
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.resources import CUDA, ROCM, Slot

HERE = Path("/var/lib/clutch/members/m")
SPEC = ContainerSpec(MemberId(TaskId("m"), "main", 0), Fence(0, 1, 1), ("python", "-c", "1"), "/work", image="box:1")


# -- what an engine is asked --------------------------------------------------------------------------------------


def test_a_plain_member_asks_for_no_privilege_and_no_limit() -> None:
    body = create_body(SPEC, HERE, DockerSettings())
    host = body["HostConfig"]
    assert body["Entrypoint"] == ["python", "-c", "1"] and body["Cmd"] == [] and body["Image"] == "box:1"
    assert host["NetworkMode"] == "host" and host["Init"] and host["Ulimits"] == []
    assert host["Mounts"] == [{"Type": "bind", "Source": "/work", "Target": "/work", "ReadOnly": False}]
    assert not {"Privileged", "CapAdd", "Memory", "NanoCpus", "DeviceRequests", "Devices", "User"} & {*host, *body}
    assert "NVIDIA_VISIBLE_DEVICES=void" in body["Env"]  # an image may say "all"


def test_what_is_asked_for_is_asked_of_the_engine() -> None:
    spec = replace(
        SPEC,
        limits=Limits(millicpus=1500, memory_bytes=2**30, open_files=99, core_bytes=0),
        mounts=(Mount("/data", "/in"),),
        run_as=RunAs(7, 8, (9,)),
        shm_bytes=2**20,
    )
    body = create_body(spec, HERE, DockerSettings(network="bridge", init=False))
    host = body["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"], host["ShmSize"]) == (15 * 10**8, 2**30, 2**30, 2**20)
    assert [(u["Name"], u["Hard"]) for u in host["Ulimits"]] == [("nofile", 99), ("core", 0)]
    assert host["Mounts"][1] == {"Type": "bind", "Source": "/data", "Target": "/in", "ReadOnly": True}
    assert (body["User"], host["GroupAdd"], host["CapDrop"]) == ("7:8", ["9"], ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["NetworkMode"], host["Init"]) == ("bridge", False)


@pytest.mark.parametrize(
    ("slots", "requested", "seen"),
    [
        ((Slot(3, CUDA, "GPU-a"), Slot(5, CUDA, "GPU-b")), ["GPU-a", "GPU-b"], "GPU-a,GPU-b"),
        ((Slot(3, CUDA), Slot(5, CUDA)), ["3", "5"], "0,1"),  # counted anew inside
    ],
)
def test_a_lease_is_a_device_request(slots: tuple[Slot, ...], requested: list[str], seen: str) -> None:
    body = create_body(replace(SPEC, slots=slots), HERE, DockerSettings())
    [request] = body["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == requested and request["Capabilities"] == [["gpu"]]
    assert f"CUDA_VISIBLE_DEVICES={seen}" in body["Env"]
    assert not [variable for variable in body["Env"] if variable.startswith("NVIDIA_VISIBLE_DEVICES")]


def test_gpus_by_environment_and_rocm_devices() -> None:
    cuda = create_body(replace(SPEC, slots=(Slot(3, CUDA, "GPU-a"),)), HERE, DockerSettings(gpus=Gpus.ENVIRONMENT))
    assert "NVIDIA_VISIBLE_DEVICES=GPU-a" in cuda["Env"] and "DeviceRequests" not in cuda["HostConfig"]
    rocm = create_body(replace(SPEC, slots=(Slot(1, ROCM, "GPU-r"),)), HERE, DockerSettings())
    assert [device["PathOnHost"] for device in rocm["HostConfig"]["Devices"]] == ["/dev/kfd", "/dev/dri"]
    assert "ROCR_VISIBLE_DEVICES=GPU-r" in rocm["Env"]


def test_names_of_containers_differ_by_directory() -> None:
    assert container_name(Path("/a/m")) != container_name(Path("/b/m"))
    assert len(container_name(HERE)) < 64


# -- images -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "path"),
    [
        ("box", "fromImage=box&tag=latest"),
        ("box:1", "fromImage=box&tag=1"),
        ("host:5000/team/box", "fromImage=host%3A5000%2Fteam%2Fbox&tag=latest"),
        ("host:5000/box:2", "fromImage=host%3A5000%2Fbox&tag=2"),
        ("box@sha256:ab", "fromImage=box%40sha256%3Aab"),
    ],
)
def test_exactly_one_image_is_pulled(image: str, path: str) -> None:
    assert pull_path(image) == f"/images/create?{path}"


def test_a_password_may_hold_colons_and_goes_to_its_registry() -> None:
    [(name, value)] = auth_header("host:5000/box", "me:a:b")
    assert name == "X-Registry-Auth"
    words = json.loads(base64.urlsafe_b64decode(value))
    assert words == {"username": "me", "password": "a:b", "serveraddress": "host:5000"}
    assert auth_header("box", "") == ()


def test_progress_in_words_whatever_the_cuts() -> None:
    lines = [
        {"status": "Pulling from box", "id": "1"},
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Pulling fs layer", "id": "b"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 5_000_000, "total": 20_000_000}},
        {"status": "Pull complete", "id": "b"},
    ]
    data = "".join(json.dumps(line) + "\r\n" for line in lines).encode()
    for size in (1, 7, 1000):
        progress = Progress("box:1")
        assert progress.text() == "pulling box:1"
        for start in range(0, len(data), size):
            progress.add(data[start : start + size])
        assert progress.text() == "pulling box:1: 1 of 2 layers, 5 of 20 MB" and progress.error == ""
    progress.add(b'{"error": "denied"}')
    progress.end()
    assert progress.error == "denied"


# -- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "code", "cause"),
    [
        (Seen(0), 0, "own"),
        (Seen(3), 3, "own"),
        (Seen(137), -9, "own"),
        (Seen(143, ordered=True), -15, "ended"),
        (Seen(137, ordered=True, out_of_memory=True, limited=True), -9, "out_of_memory"),
        (Seen(7, out_of_memory=True, limited=True), 7, "out_of_memory"),
        (Seen(0, out_of_memory=True, limited=True), 0, "own"),
        (Seen(137, killed_by=(15, 9)), -9, "machine"),
        (Seen(1, killed_by=(15,)), 1, "own"),
        (Seen(255, engine_lost=True), 255, "machine"),
        (Seen(1, engine_lost=True), 1, "own"),
        (Seen(255, rebooted=True), 255, "machine"),
        (Seen(127, stderr_head=b"[FATAL tini (7)] exec x failed: No such file\n"), 127, "refused"),
        (Seen(127, stderr_head=b"[FATAL tini (7)] exec x failed: No such file\n", init=False), 127, "own"),
        (Seen(127, stderr_head=b"sh: x: not found\n"), 127, "own"),
    ],
)
def test_how_it_ended(seen: Seen, code: int, cause: str) -> None:
    said = verdict(seen)
    assert (said.code, said.cause) == (code, cause)
    assert said.reason or cause == "own"


# -- the log ------------------------------------------------------------------------------------------------------


def messages(data: bytes, at: float, stream: int = 1) -> list[bytes]:
    """The payloads a log gives back for what a container wrote: lines; long ones in parts, their newline lost."""
    found = []
    for line in data.splitlines(keepends=True):
        bare = line.removesuffix(b"\n")
        if len(bare) < PART_BYTES:
            found.append(line)
            continue
        found += [bare[start : start + PART_BYTES] for start in range(0, len(bare), PART_BYTES)]
        if len(bare) % PART_BYTES == 0 and line.endswith(b"\n"):
            found.append(b"")
    return [f"{stamp(at + number * 1e-3)} ".encode() + piece for number, piece in enumerate(found)]


lines = st.lists(
    st.one_of(st.binary(max_size=20), st.sampled_from([b"x" * size for size in (16383, 16384, 16385, 32768)])),
    max_size=8,
).map(lambda found: b"".join(line.replace(b"\n", b".").replace(b"\r", b".") + b"\n" for line in found))


@given(lines, st.floats(0, 1))
def test_any_beginning_in_the_spool_and_the_rest_from_the_log_is_the_whole(data: bytes, share: float) -> None:
    data = bytes(byte if byte not in b"\x0b\x0c\x1c\x1d\x1e\x85" else 46 for byte in data)
    have = int(len(data) * share)
    position = LogPosition({1: have, 2: 0}, "", [])
    assert data[:have] + b"".join(position.new(1, one, 0.0) for one in messages(data, 1000.0)) == data


def test_what_an_engine_handed_out_and_lost_does_not_swallow_what_follows() -> None:
    """Attached, the spool got ``abc``; the engine was killed before its log did; ``def`` came after its restart."""
    breaks = [Break(stamp(2000.0), {})]
    log = [*messages(b"one\n", 1000.0), *messages(b"def\n", 3000.0)]
    position = LogPosition({1: 7, 2: 0}, "", breaks)
    assert b"".join(position.new(1, one, 0.0) for one in log) == b"def\n"
    assert position.changed and breaks[0].shifts == {1: 3}
    again = LogPosition({1: 9, 2: 0}, position.head, [Break.parse(str(breaks[0]))])  # a later keeper, mid-way
    assert b"".join(again.new(1, one, 0.0) for one in log) == b"f\n"


def test_a_log_that_lost_its_beginning_goes_on_by_time() -> None:
    head = stamp(500.0)
    log = [*messages(b"old\n", 1000.0), *messages(b"new\n", 3000.0)]
    position = LogPosition({1: 100, 2: 0}, head, [])
    assert b"".join(position.new(1, one, 2000.0) for one in log) == b"new\n"
    assert position.head == stamp(1000.0)


def test_an_unterminated_end_stays_one() -> None:
    position = LogPosition({1: 0, 2: 0}, "", [])
    assert b"".join(position.new(1, one, 0.0) for one in messages(b"a\nlast", 1.0)) == b"a\nlast"


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8), st.integers(1, 30))
def test_frames_whatever_the_cuts(frames: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(bytes((stream, 0, 0, 0)) + len(piece).to_bytes(4, "big") + piece for stream, piece in frames)
    cutter = Frames()
    found = [one for start in range(0, len(data), size) for one in cutter.add(data[start : start + size])]
    assert found == frames


# -- answers ------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.integers(1, 50))
def test_a_chunked_answer_whatever_the_cuts(pieces: list[bytes], size: int) -> None:
    data = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        stream = Stream(here, 200, True, b"")
        found = b""
        for start in range(0, len(data), size):
            assert stream.read() == b""  # nothing yet: it does not wait
            there.sendall(data[start : start + size])
            found += stream.read()
            if stream.ended:
                break
        assert found == b"".join(pieces) and stream.ended


def test_an_answer_that_is_cut_is_told_from_one_that_ended() -> None:
    here, there = socket.socketpair()
    with here:
        here.setblocking(False)
        there.sendall(b"5\r\nab")
        stream = Stream(here, 200, True, b"")
        assert stream.read() == b"ab"
        there.close()
        with pytest.raises(EngineGone):
            stream.read()


def test_what_is_missing_for_an_engine_is_said() -> None:
    assert docker.missing() == "" or "apt-get install" in docker.missing() or "root" in docker.missing()
