"""Large values between processes of one machine: written once into sealed memory, mapped by everyone.

A segment is a ``memfd``: it has no name, needs no room in ``/dev/shm``, and is gone with the last process that has it.
It is sealed before it is passed on, so nobody can change or shorten it below a reader. A receiver maps it privately:
what it writes there is copied first, page by page, and seen by nobody else.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from clutch.runtime.distributed.payload import Packed
from clutch.wire.errors import Corrupt, Unavailable

ALIGNMENT = 64
WRITE_AT_ONCE = 64 << 20
_BUFFERS_AT_ONCE = 512
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ZEROS = memoryview(bytes(ALIGNMENT))


class Segment:
    """Sealed memory that this process holds open until ``close``; a view of it outlives that."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._view: memoryview | None = None

    def view(self) -> memoryview:
        """All of it, writable, ours alone."""
        if self._view is None:
            if not self.size:
                return memoryview(bytearray())
            self._view = _mapped(self.descriptor, self.size)
        return self._view

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT


def extent(packed: Packed) -> int:
    """How many bytes it takes with its buffers aligned."""
    at = aligned(len(packed.body))
    for buffer in packed.buffers:
        at = aligned(at + buffer.nbytes)
    return at


def laid_out(packed: Packed) -> list[memoryview]:
    """Body and buffers with what is between them."""
    found: list[memoryview] = []
    for part in (memoryview(packed.body), *packed.buffers):
        found.append(part)
        gap = aligned(part.nbytes) - part.nbytes
        if gap:
            found.append(_ZEROS[:gap])
    return found


def write_segment(parts: Sequence[memoryview], size: int) -> Segment:
    """A segment that holds these parts, one behind the other. ``Unavailable`` if there is no memory for it."""
    descriptor = os.memfd_create("clutch-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        pending = _cut(parts)
        while pending:
            written = os.writev(descriptor, pending[:_BUFFERS_AT_ONCE])
            pending = _rest(pending, written)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise Unavailable(
            f"{size} bytes of memory to pass on cannot be had: {error.strerror}", object="group"
        ) from error
    return Segment(descriptor, size)


def received_segment(descriptor: int) -> Segment:
    """A segment that came from another process. ``Corrupt`` unless nobody can change it any more."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS != _SEALS:
        os.close(descriptor)
        raise Corrupt("memory that is not sealed", object="message of a group")
    return Segment(descriptor, os.fstat(descriptor).st_size)


def _mapped(descriptor: int, size: int) -> memoryview:
    """A private mapping that goes with its last view. ``mmap.mmap`` would keep a descriptor open for each value that a
    program holds, and there are only so many."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=protection, trackfd=False))
    import ctypes

    library = _library()
    address = library.mmap(None, size, protection, mmap.MAP_PRIVATE, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise Unavailable(f"{size} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}", object="group")
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, library.munmap, address, size).atexit = False
    return memoryview(memory).cast("B")


@functools.cache
def _library() -> Any:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


def _cut(parts: Sequence[memoryview]) -> list[memoryview]:
    """One call writes at most about 2 GiB, and whoever waits for us to end wants that to be soon."""
    return [
        part[at : at + WRITE_AT_ONCE] for part in parts if part.nbytes for at in range(0, part.nbytes, WRITE_AT_ONCE)
    ]


def _rest(pending: list[memoryview], written: int) -> list[memoryview]:
    for index, part in enumerate(pending):
        if written < part.nbytes:
            return [part[written:], *pending[index + 1 :]]
        written -= part.nbytes
    return []
