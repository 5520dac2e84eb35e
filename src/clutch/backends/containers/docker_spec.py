"""A container as an engine is asked for it. Pure.

Nothing here needs a privilege: no ``--privileged``, no added capability, no raised limit unless the specification asks
for one. A member that runs as somebody gets less than an engine's default: no capability at all, and no way to more.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from clutch.wire.containers import ContainerSpec, Mount, lease_environment
from clutch.wire.errors import BadRequest
from clutch.wire.resources import CUDA, ROCM, Slot

MARK = "CLUTCH_CONTAINER"
ROOT_LABEL, DIRECTORY_LABEL, CAP_LABEL = "clutch.root", "clutch.directory", "clutch.output_cap_bytes"
LOG_LEAST_BYTES = 1024 * 1024
ROCM_DEVICES = ("/dev/kfd", "/dev/dri")


class Gpus(StrEnum):
    """How a lease's GPUs get into a container."""

    REQUEST = "request"  # a device request: the engine has NVIDIA's container toolkit (Docker 19.03 and newer)
    ENVIRONMENT = "environment"  # by NVIDIA_VISIBLE_DEVICES: NVIDIA's runtime is the engine's default one


class DockerSettings(msgspec.Struct, frozen=True):
    """What is the same for all containers of an agent."""

    network: str = "host"
    """``host``: members of many nodes reach each other, and a port is the node's. Else the name of a network of the
    engine, such as ``bridge``: apart from the node, reachable from it by ``address``."""
    gpus: Gpus = Gpus.REQUEST
    init: bool = True
    """A small init as the container's first process: without it a command that handles no SIGTERM ignores it."""


def container_name(directory: Path) -> str:
    """The engine refuses a second container of this name: one more guard that nothing is executed twice."""
    return "clutch-" + hashlib.sha256(bytes(directory)).hexdigest()[:24]


def create_body(spec: ContainerSpec, directory: Path, settings: DockerSettings) -> dict[str, Any]:
    """The question that makes the container; ``BadRequest`` for what no engine can be asked."""
    _check(spec)
    environment = {**spec.environment, **_lease_environment(spec.slots, settings), MARK: str(directory)}
    body: dict[str, Any] = {
        "Image": spec.image,
        "Entrypoint": list(spec.argv),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {
            ROOT_LABEL: str(directory.parent),
            DIRECTORY_LABEL: str(directory),
            CAP_LABEL: str(spec.output_cap_bytes),
        },
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "OpenStdin": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host(spec, settings),
    }
    if spec.cwd:
        body["WorkingDir"] = spec.cwd
    if spec.run_as is not None:
        body["User"] = f"{spec.run_as.uid}:{spec.run_as.gid}"
    return body


def _host(spec: ContainerSpec, settings: DockerSettings) -> dict[str, Any]:
    limits = spec.limits
    log_bytes = max(spec.output_cap_bytes, LOG_LEAST_BYTES)
    mounts = [*([Mount(spec.cwd, spec.cwd, read_only=False)] if spec.cwd else []), *spec.mounts]
    host: dict[str, Any] = {
        "NetworkMode": settings.network,
        "Init": settings.init,
        "RestartPolicy": {"Name": "no"},
        # The only driver whose log has every byte: the others mend what is not text (decision 1000).
        "LogConfig": {"Type": "local", "Config": {"max-size": str(log_bytes), "max-file": "2", "compress": "false"}},
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in mounts
        ],
    }
    if limits.millicpus:
        host["NanoCpus"] = limits.millicpus * 1_000_000
    if limits.memory_bytes:
        host["Memory"] = host["MemorySwap"] = limits.memory_bytes
    ulimits = {"nofile": limits.open_files or None, "core": limits.core_bytes}
    host["Ulimits"] = [{"Name": n, "Soft": v, "Hard": v} for n, v in ulimits.items() if v is not None]
    if spec.shm_bytes:
        host["ShmSize"] = spec.shm_bytes
    if spec.run_as is not None:
        host["GroupAdd"] = [str(group) for group in spec.run_as.groups]
        host["CapDrop"] = ["ALL"]
        host["SecurityOpt"] = ["no-new-privileges"]
    host.update(_devices(spec.slots, settings))
    return host


def _devices(slots: tuple[Slot, ...], settings: DockerSettings) -> dict[str, Any]:
    if settings.gpus is not Gpus.REQUEST:
        return {}
    found: dict[str, Any] = {}
    cuda = [slot.uuid or str(slot.index) for slot in slots if slot.kind == CUDA]
    if cuda:
        found["DeviceRequests"] = [{"Driver": "", "Count": 0, "DeviceIDs": cuda, "Capabilities": [["gpu"]]}]
    if any(slot.kind == ROCM for slot in slots):
        found["Devices"] = [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in ROCM_DEVICES
        ]
    return found


def _lease_environment(slots: tuple[Slot, ...], settings: DockerSettings) -> dict[str, str]:
    """As for a process, but devices that were requested by number are counted anew inside the container."""
    found = lease_environment(slots)
    cuda = [slot for slot in slots if slot.kind == CUDA]
    if settings.gpus is Gpus.REQUEST and not all(slot.uuid for slot in cuda):
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(cuda))))
    asked = ",".join(slot.uuid or str(slot.index) for slot in cuda) if settings.gpus is Gpus.ENVIRONMENT else ""
    found["NVIDIA_VISIBLE_DEVICES"] = asked or "void"
    if settings.gpus is Gpus.REQUEST and cuda:
        del found["NVIDIA_VISIBLE_DEVICES"]  # the device request sets it
    return found


def _check(spec: ContainerSpec) -> None:
    name = ascii(str(spec.member)) if not _encodes(str(spec.member)) else str(spec.member)
    if not spec.image:
        raise BadRequest("there is no image", object=name, next_step="Name an image, or run it as a plain process.")
    if not spec.argv or not spec.argv[0]:
        raise BadRequest("there is no command", object=name)
    if any("=" in variable or not variable for variable in spec.environment):
        raise BadRequest("a name in its environment is impossible", object=name)
    words = [*spec.argv, spec.cwd, spec.image, *(f"{name}={value}" for name, value in spec.environment.items())]
    if any("\0" in word or not _encodes(word) for word in words):
        raise BadRequest("a word of the command or environment is impossible", object=name)
    if spec.registry_auth and ":" not in spec.registry_auth:
        raise BadRequest("what should be user:password for the registry has no colon", object=name)
    for path in (spec.cwd, *(path for mount in spec.mounts for path in (mount.source, mount.target))):
        if path and not path.startswith("/"):
            raise BadRequest(f"the path {path} is not absolute", object=name)
    targets = [mount.target.rstrip("/") for mount in spec.mounts]
    if len({*targets, spec.cwd.rstrip("/")}) < len(targets) + (1 if spec.cwd else 0):
        raise BadRequest("two mounts have the same target", object=name)


def _encodes(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
