"""The doctor's canary: a small task whose bytes and exit code must come back as they were."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator

from clutch.cli.doctor import FAIL, OK, WARN, Finding
from clutch.sdk import calls
from clutch.sdk.client import Client
from clutch.sdk.task import Task
from clutch.sdk.wish import submission
from clutch.wire.errors import ClutchError, NotAllowed, TimedOut

SIZE_BYTES = 512
EXIT_CODE = 7
CLOCK_MAX_S = 5.0


def song(seed: int) -> bytes:
    """Every byte there is, in no order, without a newline at its end."""
    data = bytearray(range(256)) + bytearray(random.Random(seed).randbytes(SIZE_BYTES - 256))
    random.Random(seed).shuffle(data)
    return bytes(data)


def command(data: bytes) -> tuple[str, ...]:
    """A command that prints these bytes, with nothing but a POSIX shell."""
    octal = "".join(f"\\{byte:03o}" for byte in data)
    return ("sh", "-c", f"printf '{octal}'; exit {EXIT_CODE}")


def sing(client: Client, pool: str, wait_s: float) -> Iterator[Finding]:
    data = song(secrets.randbits(32))
    wish = submission(command(data), "", secrets.token_hex(16), {"pool": pool, "name": "canary", "priority": 1})
    began = time.time()
    try:
        task = client.submit(wish)
    except NotAllowed as error:
        yield Finding(WARN, "canary", error.cause, "Log in as somebody who may submit, or say --no-canary.")
        return
    except ClutchError as error:
        yield Finding(FAIL, "canary", error.cause, error.next_step)
        return
    took_s = time.time() - began
    try:
        detail = task.wait(wait_s)
    except TimedOut as error:
        words = client.perform(calls.why_task(task.id)).sentence
        task.kill()
        yield Finding(FAIL, "canary", f"{error.cause} after {wait_s:.0f} s: {words}", "Say --pool, or --wait longer.")
        return
    yield from clock(detail.task.submitted_at, began, took_s)
    yield judged(task, detail.exit_code, data, time.time() - began)


def clock(submitted_at: float, began: float, took_s: float) -> Iterator[Finding]:
    """The master's clock against ours, by when it says it heard of the canary."""
    skew_s = submitted_at - (began + took_s / 2)
    if abs(skew_s) > CLOCK_MAX_S + took_s:
        words = f"the master's clock is {skew_s:+.1f} s from this machine's"
        yield Finding(WARN, "clock", words, "Let both keep time with NTP.")
    else:
        yield Finding(OK, "clock", f"the master's clock is within {max(0.1, abs(skew_s)):.1f} s of this machine's")


def judged(task: Task, code: int | None, data: bytes, took_s: float) -> Finding:
    try:
        came = b"".join(task.client.pieces(calls.raw_stream(task.id, {"role": "main"})))
    except ClutchError as error:
        return Finding(FAIL, "canary", f"its output did not come back: {error}", f"Ask 'clutch why {task.id}'.")
    if code != EXIT_CODE:
        return Finding(FAIL, "canary", f"it exited with {code}, not {EXIT_CODE}", f"Ask 'clutch why {task.id}'.")
    if came != data:
        words = f"{len(came)} bytes came back, not the {len(data)} it printed"
        return Finding(FAIL, "canary", words, f"Compare with 'clutch logs --raw {task.id}', and report it.")
    return Finding(
        OK, "canary", f"{task.id} ran; its {len(data)} bytes and exit code came back as they were ({took_s:.1f} s)"
    )
