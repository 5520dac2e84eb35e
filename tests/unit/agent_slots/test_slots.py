"""Slots: from what a machine shows to what its agent offers."""

# The stand-in for NVIDIA's module has that module's names:
# ruff: noqa: N802

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.agent import slots
from clutch.agent.slots import Device, Machine, SlotWish, capacity, look, places, visible
from clutch.wire.errors import BadRequest
from clutch.wire.resources import ARTIFICIAL, CPU, CUDA, ROCM, Capacity, Slot

GIB = 2**30
BARE = Machine(cpus=8, memory_bytes=64 * GIB)
A, B, C = (Device(CUDA, f"GPU-{letter}", "H200", 80 * GIB) for letter in "abc")


# -- the conclusion -----------------------------------------------------------------------------------------------


def test_a_machine_without_accelerators_is_one_cpu_slot() -> None:
    assert capacity(BARE, SlotWish()) == Capacity((Slot(0, CPU),), 8000, 64 * GIB)


def test_as_many_cpu_slots_as_asked_for() -> None:
    assert [slot.kind for slot in capacity(BARE, SlotWish(cpu=3)).slots] == [CPU] * 3
    assert capacity(BARE, SlotWish(cpu=0)).slots == ()


def test_accelerators_come_without_cpu_slots_unless_asked_for() -> None:
    machine = Machine(8, 64 * GIB, devices=(A, B))
    assert capacity(machine, SlotWish()).slots == (Slot(0, CUDA, "GPU-a"), Slot(1, CUDA, "GPU-b"))
    assert [s.kind for s in capacity(machine, SlotWish(cpu=1)).slots] == [CUDA, CUDA, CPU]


def test_artificial_slots_stand_alone() -> None:
    offered = capacity(Machine(8, 64 * GIB, devices=(A,)), SlotWish(artificial=4, cpu=2)).slots
    assert offered == tuple(Slot(index, ARTIFICIAL) for index in range(4))


def test_limits_of_the_agents_own_container_count() -> None:
    machine = Machine(8, 64 * GIB, cpu_quota_millicpus=2500, memory_limit_bytes=4 * GIB)
    offered = capacity(machine, SlotWish())
    assert (offered.millicpus, offered.memory_bytes) == (2500, 4 * GIB)
    wide = Machine(2, 4 * GIB, cpu_quota_millicpus=64_000, memory_limit_bytes=0)
    assert (capacity(wide, SlotWish()).millicpus, capacity(wide, SlotWish()).memory_bytes) == (2000, 4 * GIB)


@pytest.mark.parametrize("wish", [SlotWish(artificial=-1), SlotWish(cpu=-1), SlotWish(artificial=5000)])
def test_impossible_numbers_are_refused(wish: SlotWish) -> None:
    with pytest.raises(BadRequest):
        capacity(BARE, wish)


def test_a_device_that_fails_does_not_rename_the_others() -> None:
    before = capacity(Machine(8, GIB, devices=(A, B, C)), SlotWish())
    after = capacity(Machine(8, GIB, devices=(A, C)), SlotWish(), places(before))
    assert after.slots == (Slot(0, CUDA, "GPU-a"), Slot(2, CUDA, "GPU-c"))
    known = places(after, places(before))  # what is away is still known
    fresh = Device(CUDA, "GPU-fresh")
    replaced = capacity(Machine(8, GIB, devices=(A, fresh, C)), SlotWish(), known)
    assert replaced.slots == (Slot(0, CUDA, "GPU-a"), Slot(2, CUDA, "GPU-c"), Slot(3, CUDA, "GPU-fresh"))


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.dictionaries(st.sampled_from([f"GPU-{letter}" for letter in "abcdefghij"]), st.integers(0, 30)),
    st.integers(0, 3),
)
def test_every_place_is_given_once(letters: list[str], known: dict[str, int], cpu: int) -> None:
    known = {uuid: place for place, uuid in {place: uuid for uuid, place in known.items()}.items()}
    machine = Machine(8, GIB, devices=tuple(Device(CUDA, f"GPU-{letter}") for letter in letters))
    offered = capacity(machine, SlotWish(cpu=cpu), known).slots
    indexes = [slot.index for slot in offered]
    assert len(set(indexes)) == len(indexes) == len(letters) + cpu and indexes == sorted(indexes)
    assert all(slot.index == known[slot.uuid] for slot in offered if slot.uuid in known)


def test_places_are_kept_between_starts(tmp_path: Path) -> None:
    file = tmp_path / "slots.json"
    assert slots.load_places(file) == {}
    slots.save_places(file, {"GPU-a": 3})
    assert slots.load_places(file) == {"GPU-a": 3}
    file.write_bytes(file.read_bytes()[:5])
    assert slots.load_places(file) == {}


# -- CUDA_VISIBLE_DEVICES of the agent itself ---------------------------------------------------------------------

HALF = Device(CUDA, "MIG-1", parent="GPU-c")
OTHER_HALF = Device(CUDA, "MIG-2", parent="GPU-c")
AMD = Device(ROCM, "GPU-0000000000000001")


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, [A, B, HALF, OTHER_HALF, AMD]),
        ("", [AMD]),
        ("1", [B, AMD]),
        ("1,0", [B, A, AMD]),
        ("0,7,1", [A, AMD]),  # CUDA stops at the first it does not know
        ("-1", [AMD]),
        ("GPU-b", [B, AMD]),
        ("2", [HALF, OTHER_HALF, AMD]),
        ("MIG-2", [OTHER_HALF, AMD]),
        ("0,0", [A, AMD]),
    ],
)
def test_devices_the_agent_may_not_use_are_not_offered(variable: str | None, seen: list[Device]) -> None:
    assert visible((A, B, HALF, OTHER_HALF, AMD), variable) == seen


# -- NVML ---------------------------------------------------------------------------------------------------------


class NvmlWith(ModuleType):
    """Answers like NVIDIA's module about the devices it was given; ``broken`` ones fail when asked."""

    class NVMLError(Exception):
        pass

    def __init__(self, devices: list[dict[str, Any]], driver: bool = True) -> None:
        super().__init__("pynvml")
        self.devices = devices
        self.driver = driver
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if self.devices[index].get("broken"):
            raise self.NVMLError("GPU is lost")
        return self.devices[index]

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> str | bytes:
        return handle["uuid"]

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> str | bytes:
        return handle.get("name", "NVIDIA H200")

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(total=handle.get("memory", 141 * GIB))

    def nvmlDeviceGetMigMode(self, handle: dict[str, Any]) -> list[int]:
        if "mig" not in handle:
            raise self.NVMLError("Not Supported")
        return [int(handle["mig"] is not None), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: dict[str, Any], index: int) -> dict[str, Any]:
        if index >= len(handle["mig"]) or handle["mig"][index] is None:
            raise self.NVMLError("Not Found")
        return {"uuid": handle["mig"][index], "memory": 10 * GIB}


def test_every_nvidia_device_is_found() -> None:
    nvml = NvmlWith([{"uuid": "GPU-a"}, {"uuid": b"GPU-b", "name": b"Tesla"}, {"uuid": "GPU-c", "mig": None}])
    devices, notices = slots.nvidia_devices(nvml)
    assert [(d.uuid, d.name) for d in devices] == [
        ("GPU-a", "NVIDIA H200"),
        ("GPU-b", "Tesla"),
        ("GPU-c", "NVIDIA H200"),
    ]
    assert notices == [] and nvml.open == 0 and devices[0].memory_bytes == 141 * GIB


def test_a_divided_device_is_its_instances() -> None:
    nvml = NvmlWith(
        [{"uuid": "GPU-a", "mig": ["MIG-1", None, "MIG-3"]}, {"uuid": "GPU-b"}, {"uuid": "GPU-c", "mig": []}]
    )
    devices, notices = slots.nvidia_devices(nvml)
    assert [(d.uuid, d.parent) for d in devices] == [("MIG-1", "GPU-a"), ("MIG-3", "GPU-a"), ("GPU-b", "")]
    assert devices[0].memory_bytes == 10 * GIB
    assert ["MIG mode without instances" in notice for notice in notices] == [True]


def test_a_device_that_does_not_answer_is_left_out_and_named() -> None:
    devices, notices = slots.nvidia_devices(NvmlWith([{"uuid": "GPU-a"}, {"broken": True}, {"uuid": "GPU-c"}]))
    assert [d.uuid for d in devices] == ["GPU-a", "GPU-c"]
    assert len(notices) == 1 and "device 1" in notices[0] and "GPU is lost" in notices[0]


def test_without_a_driver_there_are_none() -> None:
    nvml = NvmlWith([{"uuid": "GPU-a"}], driver=False)
    assert slots.nvidia_devices(nvml)[0] == [] and nvml.open == 0


def test_the_drivers_own_list_serves_as_well() -> None:
    text = (
        "GPU 0: NVIDIA H200 (UUID: GPU-aa-1)\n"
        "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bb-2)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-x)\n"
        "  MIG 2g.20gb     Device  1: (UUID: MIG-y)\n"
        "GPU 2: NVIDIA H200 (UUID: GPU-cc-3)\n"
    )
    assert [(d.uuid, d.parent) for d in slots.listed_devices(text)] == [
        ("GPU-aa-1", ""), ("MIG-x", "GPU-bb-2"), ("MIG-y", "GPU-bb-2"), ("GPU-cc-3", "")
    ]  # fmt: skip
    assert slots.listed_devices(text)[0].name == "NVIDIA H200"
    assert slots.listed_devices("No devices found.\n") == []


# -- AMD ----------------------------------------------------------------------------------------------------------


def amd_node(nodes: Path, number: int, memory: int = 0, **properties: int) -> None:
    node = nodes / str(number)
    (node / "mem_banks" / "0").mkdir(parents=True)
    (node / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))
    (node / "mem_banks" / "0" / "properties").write_text(f"heap_type 1\nsize_in_bytes {memory}\nflags 0\n")


def test_amd_devices_as_the_kernel_lists_them(tmp_path: Path) -> None:
    amd_node(tmp_path, 0, cpu_cores_count=64, simd_count=0, unique_id=0)
    amd_node(tmp_path, 10, 64 * GIB, simd_count=440, unique_id=0, gfx_target_version=90010)
    amd_node(tmp_path, 2, 128 * GIB, simd_count=440, unique_id=0xABC, gfx_target_version=90402)
    assert slots.amd_devices(tmp_path) == [
        Device(ROCM, "GPU-0000000000000abc", "gfx90402", 128 * GIB),
        Device(ROCM, "1", "gfx90010", 64 * GIB),
    ]
    assert slots.amd_devices(tmp_path / "nothing") == []


# -- limits of control groups -------------------------------------------------------------------------------------


def test_quota_texts() -> None:
    assert [slots.cpu_quota(text) for text in ("max 100000", "150000 100000", "-1 100000", "", "50 0", "1 100000")] == [
        0, 1500, 0, 0, 0, 1
    ]  # fmt: skip
    assert [slots.memory_limit(text, GIB) for text in ("max", "1000\n", "9223372036854771712", "")] == [0, 1000, 0, 0]


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    leaf = tmp_path / "a" / "b"
    leaf.mkdir(parents=True)
    (leaf / "cpu.max").write_text("max 100000\n")
    (leaf / "memory.max").write_text("max\n")
    (leaf.parent / "cpu.max").write_text("400000 100000\n")
    (leaf.parent / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "cpu.max").write_text("800000 100000\n")
    assert slots.tightest_limits({"": leaf}, 8 * GIB) == (4000, 2 * GIB)
    old = tmp_path / "old"
    old.mkdir()
    (old / "cpu.cfs_quota_us").write_text("50000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    (old / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    assert slots.tightest_limits({"cpu": old, "memory": old}, 8 * GIB) == (500, GIB)
    assert slots.tightest_limits({}, GIB) == (0, 0)


# -- this very machine --------------------------------------------------------------------------------------------


def no_module(name: str) -> Any:
    raise ImportError(name)


def test_this_machine() -> None:
    seen = look(no_module)
    assert seen.cpus == len(os.sched_getaffinity(0)) >= 1
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert abs(seen.memory_bytes - pages) < pages / 100
    offered = capacity(seen, SlotWish(cpu=2))
    assert [slot.kind for slot in offered.slots][-2:] == [CPU, CPU]
    assert 0 < offered.millicpus <= seen.cpus * 1000 and 0 < offered.memory_bytes <= seen.memory_bytes


def test_devices_of_the_module_that_is_installed_are_offered() -> None:
    seen = look(lambda name: NvmlWith([{"uuid": "GPU-a"}]) if name == "pynvml" else no_module(name))
    assert [slot.uuid for slot in capacity(seen, SlotWish()).slots if slot.kind == CUDA] == ["GPU-a"]
