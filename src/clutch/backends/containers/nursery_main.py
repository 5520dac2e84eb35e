"""The nursery's process: it has read the shim's code once, and each shim is a copy of it.

Standard library only, and the plain modules beneath ``signal`` and ``socket``: what is imported here is copied for
every member. The shim's module is passed in. It holds nothing of a member once the copy is made, and it ends when its
socket does; the shims go on.
"""

# contextlib would be copied for every member:
# ruff: noqa: SIM105

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # nobody wrote its types down
import _socket
import ctypes
import gc
import os
import sys

TYPE_CHECKING = False  # ``typing`` would be copied for every member
if TYPE_CHECKING:
    from types import ModuleType

READY, BORN = b"r", b"b"
PATH_BYTES = 8192
TARGETS = (0, 3, 4, 5, 2)
"""Where a shim has what comes with each request: its launch, its lock, both FIFOs, its log."""
SPARE_FD = 16
"""Above all targets: a source must not be another's target."""


def main(shim: ModuleType) -> None:
    """Serves requests on descriptor 0, a directory and its descriptors each, until there are none any more."""
    requests = _socket.socket(fileno=0)
    _signal.signal(_signal.SIGCHLD, _reap)
    ctypes.CDLL(None).prctl(shim.PR_SET_NAME, shim.NAME, 0, 0, 0)
    gc.freeze()  # a collection in a copy would touch, and so copy, every page
    _say(requests, READY)
    while True:
        path, ancillary = _heard(requests)
        if not path:
            os._exit(0)
        packed = b"".join(data for _, _, data in ancillary)
        descriptors = [int.from_bytes(packed[n : n + 4], sys.byteorder) for n in range(0, len(packed), 4)]
        if len(descriptors) == len(TARGETS):  # with too many open files some are lost: then its lock is free again
            _bear(shim, path, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _say(requests, BORN)


def _heard(requests: _socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    """The next request; an empty one at the end."""
    size = _socket.CMSG_LEN(len(TARGETS) * 4)
    try:
        return requests.recvmsg(PATH_BYTES, size)[:2]
    except ConnectionResetError:  # it was killed before it heard our last answers; what it asked for stands
        return requests.recvmsg(PATH_BYTES, size)[:2]


def _say(requests: _socket.socket, word: bytes) -> None:
    try:
        requests.send(word)
    except OSError:
        pass  # nobody hears it any more; what was asked for before is still to be done


def _bear(shim: ModuleType, path: bytes, descriptors: list[int]) -> None:
    """Copy this process into a shim; if that cannot be, the reason is in its log and its lock is free."""
    try:
        pid = os.fork()
    except OSError as failed:
        os.write(descriptors[-1], f"no process for its shim: {failed.strerror}\n".encode())
        return
    if pid:
        return
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        os.setsid()
        spare = [shim.fcntl.fcntl(descriptor, shim.fcntl.F_DUPFD, SPARE_FD) for descriptor in descriptors]
        for source, target in zip(spare, TARGETS, strict=True):
            os.dup2(source, target)
        shim.main(os.fsdecode(path))
    except BaseException:  # whatever it is, this copy must not live on as a second nursery
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _reap(*_: object) -> None:
    """So that a shim that has ended does not stay behind as a dead entry."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
