"""A process that looks for a regular expression in lines, so that a pattern that never ends harms nobody else.

Python's ``re`` cannot be interrupted and holds up every thread of its process, so a pattern of a user's never runs in
the master. Run as a program; standard library only. It reads requests from its input and answers each on its output:

    request   length (4 bytes, little-endian), then: flags (1 byte; 1 = ignore case), seconds allowed (1 byte),
              length of the pattern (4 bytes), pattern, lines separated by newlines (UTF-8; what is not is replaced)
    answer    length (4 bytes), then: ``=`` and the numbers of the lines that match (4 bytes each), or ``!`` and what
              is wrong with the pattern

A request that takes longer than it may ends the process.
"""

from __future__ import annotations

import re
import signal
import struct
import sys
from array import array
from typing import BinaryIO

_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BBI")
IGNORE_CASE = 1


def request(pattern: str, ignore_case: bool, allowed_s: int, lines: bytes) -> bytes:
    """A request, ready to be sent."""
    wanted = pattern.encode("utf-8", "surrogatepass")
    head = _HEAD.pack(IGNORE_CASE if ignore_case else 0, allowed_s, len(wanted))
    return _LENGTH.pack(len(head) + len(wanted) + len(lines)) + head + wanted + lines


def answered(payload: bytes) -> list[int] | str:
    """The numbers of the lines that match, or what is wrong with the pattern."""
    if payload[:1] == b"!":
        return payload[1:].decode()
    numbers = array("I")
    numbers.frombytes(payload[1:])
    return numbers.tolist()


def _answer(body: bytes) -> bytes:
    flags, allowed_s, size = _HEAD.unpack_from(body)
    behind = _HEAD.size + size
    try:
        pattern = re.compile(
            body[_HEAD.size : behind].decode("utf-8", "surrogatepass"), re.IGNORECASE if flags & IGNORE_CASE else 0
        )
    except (re.error, RecursionError, OverflowError) as error:
        return b"!" + str(error).encode()
    signal.alarm(allowed_s)
    search = pattern.search
    lines = body[behind:].decode("utf-8", "replace").split("\n")
    found = array("I", [number for number, line in enumerate(lines) if search(line)])
    signal.alarm(0)
    return b"=" + found.tobytes()


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until the input ends."""
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        answer = _answer(source.read(*_LENGTH.unpack(head)))
        sink.write(_LENGTH.pack(len(answer)) + answer)
        sink.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
