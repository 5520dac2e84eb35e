"""How much of a machine: slots of a device kind, CPUs, memory.

Amounts are integers (thousandths of a CPU, bytes), so sums are exact and conservation can be checked to the last unit.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

CUDA = "cuda"
ROCM = "rocm"
CPU = "cpu"
ARTIFICIAL = "artificial"
DEVICE_KINDS = (CUDA, ROCM, CPU, ARTIFICIAL)
ANY = "any"
"""In a wish only: slots of the kind that its pool usually has, once it has some."""


def usual_kind(kinds: Collection[str]) -> str:
    """What slots of no kind mean where there are these: CUDA if it is among them, else the first; open if none is."""
    return CUDA if CUDA in kinds else min(kinds, default=ANY)


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """One device of a node, as its agent found it. ``index`` is its place on that node and never changes."""

    index: int
    kind: str
    uuid: str = ""


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one member asks for or holds. ``slots`` are of one device ``kind``; a wish may leave it open (``ANY``)."""

    slots: int = 0
    kind: str = CUDA
    millicpus: int = 0
    memory_bytes: int = 0

    def __str__(self) -> str:
        parts = [f"{self.slots} {'of any kind' if self.kind == ANY else self.kind}"] if self.slots else []
        if self.millicpus:
            parts.append(f"{self.millicpus / 1000:g} CPU")
        if self.memory_bytes:
            parts.append(f"{self.memory_bytes / 2**30:.3g} GiB")
        return ", ".join(parts) or "nothing"


class Capacity(msgspec.Struct, frozen=True):
    """What a node owns, as its agent reported it."""

    slots: tuple[Slot, ...] = ()
    millicpus: int = 0
    memory_bytes: int = 0
