"""What this machine has to give: devices as slots, CPUs, memory.

Looking (``look``) and concluding (``capacity``) are apart: the first reads NVML, the kernel's list of AMD devices, the
CPU set, memory and the limits of the agent's own control group; the second is pure.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from clutch.backends.containers.cgroups import UNIFIED, own_groups
from clutch.wire.errors import BadRequest
from clutch.wire.resources import ARTIFICIAL, CPU, CUDA, ROCM, Capacity, Slot

AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
CPU_SLOTS_DEFAULT = 1
SLOTS_MAX = 4096

# -- what is asked for, what is seen ------------------------------------------------------------------------------


class SlotWish(msgspec.Struct, frozen=True):
    """What whoever starts an agent says about its slots."""

    artificial: int = 0
    """This many slots that stand for nothing, and no others: for tests."""
    cpu: int | None = None
    """CPU slots. None: one, if there is no accelerator."""
    cuda_visible: str | None = None
    """The agent's own CUDA_VISIBLE_DEVICES: devices it may not use are not offered. None: all."""


class Device(msgspec.Struct, frozen=True):
    """An accelerator. ``uuid`` is what the variable that shows it to a process takes."""

    kind: str
    uuid: str
    name: str = ""
    memory_bytes: int = 0
    parent: str = ""
    """Of a MIG instance: the uuid of the whole device."""


class Machine(msgspec.Struct, frozen=True):
    """What was seen. A quota or limit of 0 is none."""

    cpus: int
    memory_bytes: int
    cpu_quota_millicpus: int = 0
    memory_limit_bytes: int = 0
    devices: tuple[Device, ...] = ()
    notices: tuple[str, ...] = ()


# -- the conclusion, pure -----------------------------------------------------------------------------------------


def capacity(machine: Machine, wish: SlotWish, known: dict[str, int] | None = None) -> Capacity:
    """What this machine offers. ``known`` are the places (``places``) its devices had before: they keep them."""
    for name, asked in (("artificial slots", wish.artificial), ("CPU slots", wish.cpu or 0)):
        if not 0 <= asked <= SLOTS_MAX:
            raise BadRequest(f"{asked} {name} are not possible", object="agent", next_step=f"Use 0 to {SLOTS_MAX}.")
    if wish.artificial:
        offered = [(ARTIFICIAL, "")] * wish.artificial
    else:
        offered = [(device.kind, device.uuid) for device in visible(machine.devices, wish.cuda_visible)]
        cpu_slots = wish.cpu if wish.cpu is not None else (0 if offered else CPU_SLOTS_DEFAULT)
        offered += [(CPU, "")] * cpu_slots
    quota, limit = machine.cpu_quota_millicpus, machine.memory_limit_bytes
    return Capacity(
        slots=_placed(offered, known or {}),
        millicpus=min(machine.cpus * 1000, quota or machine.cpus * 1000),
        memory_bytes=min(machine.memory_bytes, limit or machine.memory_bytes),
    )


def places(capacity: Capacity, known: dict[str, int] | None = None) -> dict[str, int]:
    """Which device has which place, to be kept for the next start; one that is away keeps its ``known`` place."""
    return {**(known or {}), **{slot.uuid: slot.index for slot in capacity.slots if slot.uuid}}


def _placed(offered: list[tuple[str, str]], known: dict[str, int]) -> tuple[Slot, ...]:
    """A device that was seen before keeps its place, so one that fails does not rename the others."""
    kept = set(known.values())
    slots: list[Slot] = []
    next_free = 0
    for kind, uuid in offered:
        if uuid in known:
            slots.append(Slot(known[uuid], kind, uuid))
            continue
        while next_free in kept:
            next_free += 1
        slots.append(Slot(next_free, kind, uuid))
        next_free += 1
    return tuple(sorted(slots, key=lambda slot: slot.index))


def visible(devices: tuple[Device, ...], cuda_visible: str | None) -> list[Device]:
    """The devices that CUDA would show under this variable, as CUDA reads it: up to the first word that names none."""
    if cuda_visible is None:
        return list(devices)
    cuda = [device for device in devices if device.kind == CUDA]
    whole = list(dict.fromkeys(device.parent or device.uuid for device in cuda))
    chosen: list[Device] = []
    for word in cuda_visible.split(","):
        word = word.strip()
        named = whole[int(word)] if word.isdigit() and int(word) < len(whole) else word
        found = [
            d for d in cuda if named and (d.uuid.startswith(named) or d.parent.startswith(named)) and d not in chosen
        ]
        if not found:
            break
        chosen += found
    return [*chosen, *(device for device in devices if device.kind != CUDA)]


def cpu_quota(cpu_max: str) -> int:
    """Thousandths of a CPU from version 2's ``cpu.max`` (also made from version 1's two files); 0 for no limit."""
    words = cpu_max.split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return 0
    return max(int(words[0]) * 1000 // int(words[1]), 1)


def memory_limit(text: str, machine_bytes: int) -> int:
    """Bytes from ``memory.max`` or ``memory.limit_in_bytes``; 0 for no limit or one beyond the machine's memory."""
    return int(text) if text.strip().isdigit() and int(text) < machine_bytes else 0


# -- looking ------------------------------------------------------------------------------------------------------


def look(load: Callable[[str], Any] = importlib.import_module, amd_nodes: Path = AMD_NODES) -> Machine:
    """What there is. An accelerator that cannot be asked is a notice, not a failure."""
    nvidia, notices = _nvidia(load)
    memory_bytes = _memory_bytes(Path("/proc/meminfo").read_text())
    quota, limit = own_limits(memory_bytes)
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes,
        cpu_quota_millicpus=quota,
        memory_limit_bytes=limit,
        devices=(*nvidia, *amd_devices(amd_nodes)),
        notices=tuple(notices),
    )


def _nvidia(load: Callable[[str], Any]) -> tuple[list[Device], list[str]]:
    try:
        nvml = load("pynvml")
    except ImportError:
        return _nvidia_by_tool() if NVIDIA_DRIVER.exists() else ([], [])
    return nvidia_devices(nvml)


def _nvidia_by_tool() -> tuple[list[Device], list[str]]:
    """Without the module the driver's own tool knows the same uuids, but no sizes."""
    try:
        asked = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [], [f"an NVIDIA driver is loaded, but its devices cannot be listed: {error}; pip install nvidia-ml-py"]
    return listed_devices(asked.stdout), []


def listed_devices(text: str) -> list[Device]:
    """Devices from the lines of ``nvidia-smi -L``; instances stand indented below the device they divide. Pure."""
    devices: list[Device] = []
    for name, uuid in re.findall(r"^\s*(?:GPU|MIG) ?(.*?)\s*\(UUID: ([^)]+)\)", text, re.MULTILINE):
        if uuid.startswith("MIG-"):
            whole = devices[-1].parent or devices[-1].uuid
            if not devices[-1].parent:
                devices.pop()
            devices.append(Device(CUDA, uuid, name.partition(":")[0], parent=whole))
        else:
            devices.append(Device(CUDA, uuid, name.partition(": ")[2]))
    return devices


def nvidia_devices(nvml: Any) -> tuple[list[Device], list[str]]:
    """All devices of an NVML module, MIG instances in the place of a device that is divided; and what went wrong."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], [f"NVIDIA devices cannot be listed: {error}"] if NVIDIA_DRIVER.exists() else []
    devices: list[Device] = []
    notices: list[str] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                whole = _nvidia_device(nvml, handle)
                divided = _is_divided(nvml, handle)
                instances = list(_instances(nvml, handle, whole.uuid)) if divided else [whole]
            except nvml.NVMLError as error:
                notices.append(f"NVIDIA device {index} does not answer and is left out: {error}")
                continue
            if not instances:
                notices.append(f"NVIDIA device {index} is in MIG mode without instances and is left out")
            devices += instances
    except nvml.NVMLError as error:
        notices.append(f"NVIDIA devices cannot be listed: {error}")
    finally:
        nvml.nvmlShutdown()
    return devices, notices


def _nvidia_device(nvml: Any, handle: Any, parent: str = "") -> Device:
    return Device(
        kind=CUDA,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        parent=parent,
    )


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # a device or driver that knows no MIG
    return bool(current == 1)


def _instances(nvml: Any, handle: Any, parent: str) -> Iterable[Device]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            continue  # an unused place
        yield _nvidia_device(nvml, instance, parent)


def _text(value: str | bytes) -> str:
    """Older releases of the module answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def amd_devices(nodes: Path) -> list[Device]:
    """AMD devices as the kernel lists them for ROCm, in ROCm's order; none where there is no such list."""
    devices: list[Device] = []
    numbers = sorted(int(path.name) for path in nodes.iterdir() if path.name.isdigit()) if nodes.is_dir() else []
    for number in numbers:
        try:
            lines = (nodes / str(number) / "properties").read_text().splitlines()
        except OSError:
            continue  # not ours to use: its control group hides it
        properties = dict(line.split(None, 1) for line in lines if len(line.split(None, 1)) == 2)
        if int(properties.get("simd_count", 0)) == 0:
            continue  # a CPU
        unique = int(properties.get("unique_id", 0))
        uuid = f"GPU-{unique:016x}" if unique else str(len(devices))
        name = f"gfx{properties.get('gfx_target_version', '').strip()}"
        devices.append(Device(ROCM, uuid, name, _amd_memory_bytes(nodes / str(number))))
    return devices


def _amd_memory_bytes(node: Path) -> int:
    total = 0
    for properties in node.glob("mem_banks/*/properties"):
        fields = dict(line.split(None, 1) for line in properties.read_text().splitlines() if " " in line)
        total += int(fields.get("size_in_bytes", 0))
    return total


def own_limits(machine_bytes: int) -> tuple[int, int]:
    """The tightest CPU quota and memory limit of the control groups this process is in; 0 for none."""
    here = Path("/proc/self")
    try:
        groups = own_groups((here / "cgroup").read_text(), (here / "mountinfo").read_text())
    except OSError:
        return 0, 0
    return tightest_limits(groups, machine_bytes)


def tightest_limits(groups: dict[str, Path], machine_bytes: int) -> tuple[int, int]:
    """Over the given groups and all above them, since each of those limits counts too."""
    quotas: list[int] = []
    limits: list[int] = []
    for group in (path for name in (UNIFIED, "cpu") if (start := groups.get(name)) for path in (start, *start.parents)):
        text = _read(group / "cpu.max") or f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        quotas.append(cpu_quota(text))
    for group in (p for name in (UNIFIED, "memory") if (start := groups.get(name)) for p in (start, *start.parents)):
        text = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        limits.append(memory_limit(text, machine_bytes))
    return min(filter(None, quotas), default=0), min(filter(None, limits), default=0)


def _memory_bytes(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# -- between starts -----------------------------------------------------------------------------------------------


def load_places(path: Path) -> dict[str, int]:
    """The places kept by ``save_places``; empty if there are none or they cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError):
        return {}


def save_places(path: Path, known: dict[str, int]) -> None:
    """Keep places for the next start: written aside and renamed."""
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    aside.write_bytes(msgspec.json.encode(known))
    aside.replace(path)
