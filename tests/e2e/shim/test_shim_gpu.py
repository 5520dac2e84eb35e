"""On a machine with NVIDIA devices: they are all found, and a lease shows a process its own and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace
from shim_ground import ShimGround, key_of

from clutch.agent.slots import NVIDIA_DRIVER, SlotWish, capacity, listed_devices, look
from clutch.wire.resources import CUDA, Slot

pytestmark = pytest.mark.skipif(not NVIDIA_DRIVER.exists(), reason="this machine has no NVIDIA driver")

COUNT = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(0)
answer = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print("none" if answer == 100 else count.value if answer == 0 else f"error {answer}")
"""


def found() -> list[Slot]:
    return [slot for slot in capacity(look(), SlotWish()).slots if slot.kind == CUDA]


def test_all_devices_are_found_as_the_driver_lists_them() -> None:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert [slot.uuid for slot in found()] == [device.uuid for device in listed_devices(listed)]
    assert found(), listed


async def test_a_lease_shows_its_devices_only(ground: ShimGround) -> None:
    containers = ground.open()
    slots = found()
    for name, lease, answer in (("one", tuple(slots[:1]), b"1\n"), ("none", (), b"none\n")):
        spec = replace(ground.spec(name, sys.executable, "-c", COUNT), slots=lease)
        await containers.start(spec)
        record = await containers.wait(key_of(spec), 60.0)
        assert (record.code, ground.stdout(key_of(spec))) == (0, answer), ground.pieces(key_of(spec))
