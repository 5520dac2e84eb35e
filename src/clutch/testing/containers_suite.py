"""What every place where members run must do, as checks that try to break it, with real processes.

Each check takes a ``Ground``: a fresh place that gives any number of ``Containers`` objects over itself, as successive
starts of an agent would. Commands need ``sh`` and the usual small tools, nothing else. ``LIMIT_CHECKS`` are for grounds
that enforce limits. Nothing here needs a particular test runner.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from clutch.backends.containers.base import Containers, Key, Wakes
from clutch.wire.containers import ContainerSpec, ExitRecord, Limits, Observed
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotFound, TimedOut
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.messages import ExitCause, MemberStatus
from clutch.wire.resources import ARTIFICIAL, CUDA, ROCM, Slot

PATIENCE_S = 30.0
FIRST = Fence(0, 1, 1)
_NUMBERS = count()


class Ground(Protocol):
    """One place, with its own folder that members can write."""

    folder: Path

    def open(self) -> Containers:
        """One more object over this place."""
        ...

    def base(self) -> ContainerSpec:
        """A specification that works here; checks replace name and command."""
        ...

    def output(self, key: Key) -> tuple[bytes, bytes]:
        """All of stdout and stderr so far."""
        ...


Check = Callable[[Ground], Awaitable[None]]


# -- what checks are made of --------------------------------------------------------------------------------------


def sh(ground: Ground, name: str, script: str) -> ContainerSpec:
    return command(ground, name, "sh", "-c", script)


def command(ground: Ground, name: str, *argv: str) -> ContainerSpec:
    return replace(ground.base(), member=MemberId(TaskId(name), "main", 0), fence=FIRST, argv=argv)


def key_of(spec: ContainerSpec) -> Key:
    return Key(spec.member, spec.fence)


async def run(containers: Containers, spec: ContainerSpec) -> ExitRecord:
    await containers.start(spec)
    return await containers.wait(key_of(spec), PATIENCE_S)


async def eventually(what: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def until_output(ground: Ground, key: Key, text: bytes) -> None:
    await eventually(lambda: text in ground.output(key)[0])


def unique_sleep() -> str:
    """A duration that no other process of this machine sleeps, so that ``running`` finds this one."""
    return f"3600.{os.getpid():07d}{next(_NUMBERS):04d}"


def running(word: str) -> list[int]:
    """Processes of this machine with a word in their command line, in whatever namespace; the dead do not count."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [int(path.name)] if word.encode() in words else []
    return found


async def refused(kind: type[ClutchError], asked: Awaitable[object]) -> ClutchError:
    try:
        await asked
    except kind as error:
        return error
    raise AssertionError(f"it was not refused with {kind.__name__}")


# -- ends ---------------------------------------------------------------------------------------------------------


async def check_how_it_ended_is_told(ground: Ground) -> None:
    containers = ground.open()
    for name, script, code in (("good", "exit 0", 0), ("bad", "exit 3", 3), ("killed", "kill -KILL $$", -9)):
        before = time.time()
        record = await run(containers, sh(ground, name, script))
        assert (record.code, record.cause) == (code, ExitCause.OWN), record
        assert before - 1 <= record.started_at <= record.ended_at <= time.time() + 1
        seen = await containers.observe(key_of(sh(ground, name, "")))
        assert seen is not None and seen.status is MemberStatus.EXITED and seen.exit == record


UNSTARTED = (ExitCause.NEVER_STARTED, ExitCause.REFUSED)


async def check_what_cannot_start_says_why(ground: Ground) -> None:
    containers = ground.open()
    missing = await run(containers, command(ground, "missing", "no-such-command-anywhere", "x"))
    assert missing.cause is ExitCause.REFUSED and "no-such-command-anywhere" in missing.reason
    elsewhere = replace(sh(ground, "elsewhere", "exit 0"), cwd="/no/such/place")
    lost = await run(containers, elsewhere)
    assert lost.cause in UNSTARTED and "/no/such/place" in lost.reason
    assert missing.started_at == lost.started_at == 0.0 < lost.ended_at
    again = await containers.start(elsewhere)
    assert again.status is MemberStatus.EXITED and again.exit == lost


async def check_a_signal_asks_the_whole_group(ground: Ground) -> None:
    """A shell that waits for its child passes nothing on; the child must hear it too."""
    containers = ground.open()
    child = "(trap 'exit 3' TERM; echo up; sleep 600 & wait)"
    spec = sh(ground, "leaver", f"trap : TERM; {child} & wait; wait $!; exit $?")
    await containers.start(spec)
    key = key_of(spec)
    await until_output(ground, key, b"up")
    await containers.signal(key, signal.SIGTERM)
    record = await containers.wait(key, PATIENCE_S)
    assert (record.code, record.cause) == (3, ExitCause.OWN), record
    await containers.signal(key, signal.SIGTERM)  # to what has exited: nothing


async def check_end_leaves_no_survivor(ground: Ground) -> None:
    """Not what ignores signals, not what runs in the background, not what made itself a daemon."""
    containers = ground.open()
    words = one, two, three = unique_sleep(), unique_sleep(), unique_sleep()
    daemon = f"(setsid sh -c 'setsid sleep {one} & exit 0' &)"
    spec = sh(ground, "stubborn", f"trap '' TERM INT HUP; {daemon}; sleep {two} & sleep {three}; exit 0")
    await containers.start(spec)
    key = key_of(spec)
    await eventually(lambda: all(map(running, words)))
    await containers.end(key)
    record = await containers.wait(key, PATIENCE_S)
    assert (record.code, record.cause) == (-9, ExitCause.ENDED), record
    assert list(map(running, words)) == [[], [], []]
    await containers.end(key)  # again: nothing
    assert (await containers.wait(key, 0.0)) == record


async def check_nothing_outlives_the_command(ground: Ground) -> None:
    containers = ground.open()
    word = unique_sleep()
    spec = sh(ground, "parent", f"(setsid sleep {word} &); exit 5")
    record = await run(containers, spec)
    assert (record.code, record.cause) == (5, ExitCause.OWN)
    assert running(word) == []


# -- at most once -------------------------------------------------------------------------------------------------


async def check_a_second_start_runs_nothing(ground: Ground) -> None:
    containers = ground.open()
    spec = sh(ground, "once", "echo ran >> marks; read never < /dev/null; sleep 0.2; exit 4")
    answers = await asyncio.gather(*(containers.start(spec) for _ in range(5)), ground.open().start(spec))
    assert {answer.member for answer in answers} == {spec.member}
    record = await containers.wait(key_of(spec), PATIENCE_S)
    after = await containers.start(replace(spec, argv=("sh", "-c", "echo again >> marks")))
    assert after.exit == record and record.code == 4
    assert (ground.folder / "marks").read_text() == "ran\n"


async def check_each_incarnation_is_another(ground: Ground) -> None:
    containers = ground.open()
    first = sh(ground, "lives", "echo 1 >> marks")
    second, third = replace(first, fence=Fence(0, 1, 2)), replace(first, fence=Fence(1, 1, 1))
    other = replace(first, member=MemberId(first.member.task, "main", 1))
    for spec in (first, second, third, other):
        await run(containers, spec)
    assert (ground.folder / "marks").read_text() == "1\n" * 4
    assert [Key(seen.member, seen.fence) for seen in await containers.found()] == [
        key_of(spec) for spec in (first, second, third, other)
    ]


async def check_names_of_users_stay_names(ground: Ground) -> None:
    """A task id may be any text; it never becomes a path, and no two of them meet."""
    containers = ground.open()
    names = [
        "../../etc",
        "/",
        ".",
        "..",
        "a/b",
        "a%2Fb",
        "a~b",
        "ä 漢字 🦜",
        "x" * 300,
        "x" * 299 + "y",
        "",
        "-rf",
        "a\nb",
        "A",
        "a",
    ]
    specs = [sh(ground, name, "echo 1 >> marks") for name in names]
    for spec in specs:
        assert (await run(containers, spec)).code == 0, spec.member
    assert (ground.folder / "marks").read_text() == "1\n" * len(names)
    found = {seen.member for seen in await ground.open().found()}
    assert found == {spec.member for spec in specs}
    for spec in specs:
        await containers.forget(key_of(spec))
    assert await containers.found() == []


async def check_another_object_takes_over(ground: Ground) -> None:
    first, second = ground.open(), ground.open()
    spec = sh(ground, "adopted", "echo one; read line < go; echo two; exit 6")
    key = key_of(spec)
    fifo = ground.folder / "go"
    await run(first, sh(ground, "maker", "mkfifo go"))
    await first.start(spec)
    await until_output(ground, key, b"one")
    found = {seen.member: seen for seen in await second.found()}
    assert found[spec.member].status is MemberStatus.RUNNING and found[spec.member].exit is None
    assert (await second.start(spec)).status is MemberStatus.RUNNING
    waiting = asyncio.create_task(second.wait(key, PATIENCE_S))
    await asyncio.to_thread(fifo.write_text, "go\n")
    assert (await waiting).code == 6
    assert (await first.wait(key, PATIENCE_S)) == await waiting
    assert ground.output(key)[0] == b"one\ntwo\n"


# -- output and surroundings --------------------------------------------------------------------------------------


async def check_output_is_complete(ground: Ground) -> None:
    """Both streams, byte for byte, also what comes without a newline and just before the end."""
    containers = ground.open()
    loop = "i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    spec = sh(ground, "talker", f"{loop}; printf last; printf '\\000\\377' >&2")
    record = await run(containers, spec)
    out = "".join(f"out {i}\n" for i in range(2000)).encode() + b"last"
    err = "".join(f"err {i}\n" for i in range(2000)).encode() + b"\x00\xff"
    assert ground.output(key_of(spec)) == (out, err)
    assert (record.stdout_bytes, record.stderr_bytes) == (len(out), len(err))
    assert record.exit().output_offset == len(out) + len(err)


async def check_reopening_the_terminal_loses_nothing(ground: Ground) -> None:
    """``> /dev/stderr`` truncates a plain file, not a pipe: a favourite of shell scripts."""
    containers = ground.open()
    spec = sh(ground, "reopener", "echo one; echo two > /dev/stdout; echo a >&2; echo b > /dev/stderr; echo three")
    await run(containers, spec)
    assert ground.output(key_of(spec)) == (b"one\ntwo\nthree\n", b"a\nb\n")


async def check_it_sees_only_what_it_was_given(ground: Ground) -> None:
    containers = ground.open()
    base = ground.base()
    spec = replace(
        sh(
            ground,
            "env",
            'printf "%s|" "$A" "$CUDA_VISIBLE_DEVICES" "${ROCR_VISIBLE_DEVICES-unset}" "$1" "$(cat)"; pwd',
        ),
        environment={**base.environment, "A": "a b=c\nd"},
        slots=(Slot(0, ARTIFICIAL), Slot(3, CUDA, "GPU-x"), Slot(5, CUDA)),
    )
    await run(containers, replace(spec, argv=(*spec.argv, "sh", "word *")))
    assert ground.output(key_of(spec))[0] == f"a b=c\nd|GPU-x,5||word *||{base.cwd}\n".encode()
    rocm = replace(
        sh(ground, "rocm", 'echo "$ROCR_VISIBLE_DEVICES|${CUDA_VISIBLE_DEVICES-unset}"'),
        slots=(Slot(1, ROCM, "GPU-r"),),
    )
    await run(containers, rocm)
    assert ground.output(key_of(rocm))[0] == b"GPU-r|\n"


async def check_usage_is_that_of_the_whole_tree(ground: Ground) -> None:
    containers = ground.open()
    burn = "head -c 50000000 /dev/zero | tr '\\000' y | (cat > /dev/null; echo up; sleep 600)"
    spec = sh(ground, "user", f"({burn}) & x=$(head -c 20000000 /dev/zero | tr '\\000' x); echo held; wait; : \"$x\"")
    await containers.start(spec)
    key = key_of(spec)
    await until_output(ground, key, b"held")
    await until_output(ground, key, b"up")
    usage = await containers.usage(key)
    assert usage.cpu_s > 0.0 and usage.memory_bytes > 15_000_000 and usage.processes >= 2, usage
    await containers.end(key)
    record = await containers.wait(key, PATIENCE_S)
    after = await containers.usage(key)
    assert (after.memory_bytes, after.processes) == (0, 0) and after.cpu_s == record.cpu_s
    assert record.cpu_s >= usage.cpu_s - 0.05


# -- requests -----------------------------------------------------------------------------------------------------


async def check_forgetting(ground: Ground) -> None:
    containers = ground.open()
    spec = sh(ground, "kept", "sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    await refused(Conflict, containers.forget(key))
    await refused(TimedOut, containers.wait(key, 0.05))
    await containers.end(key)
    await containers.wait(key, PATIENCE_S)
    await containers.forget(key)
    assert await containers.observe(key) is None and await containers.found() == []
    await containers.forget(key)  # again: nothing
    for asked in (containers.wait(key, 1.0), containers.usage(key), containers.end(key), containers.signal(key, 15)):
        assert "kept" in str(await refused(NotFound, asked))


async def check_what_makes_no_sense_is_refused(ground: Ground) -> None:
    containers = ground.open()
    good = sh(ground, "senseless", "echo ran >> marks")
    for bad in (
        replace(good, argv=()),
        replace(good, argv=("",)),
        replace(good, argv=("sh", "a\0b")),
        replace(good, environment={"A=B": "c"}),
        replace(good, environment={"": "c"}),
        replace(good, environment={"A": "b\0"}),
        replace(good, argv=("sh", "\ud800")),
        replace(good, output_cap_bytes=100),
    ):
        await refused(BadRequest, containers.start(bad))
    assert await containers.found() == []
    assert (await run(containers, good)).code == 0  # a refused start is no start
    await refused(BadRequest, containers.signal(key_of(good), 0))


async def check_a_change_is_told(ground: Ground) -> None:
    containers = ground.open()
    if not isinstance(containers, Wakes):
        return
    spec = sh(ground, "changing", "echo one; sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    before = time.monotonic()
    while b"one" not in ground.output(key)[0]:
        assert await containers.changed(key, PATIENCE_S)
    assert time.monotonic() - before < PATIENCE_S / 2
    while await containers.changed(key, 0.05):
        pass  # what was already told
    await containers.end(key)
    while (seen := await containers.observe(key)) is not None and seen.status is not MemberStatus.EXITED:
        assert await containers.changed(key, PATIENCE_S)


# -- limits -------------------------------------------------------------------------------------------------------


async def check_memory_beyond_the_limit_is_told(ground: Ground) -> None:
    """Also when the victim is a child and the command itself only fails."""
    containers = ground.open()
    hungry = "x=$(head -c 200000000 /dev/zero | tr '\\000' x); echo survived"
    limits = Limits(memory_bytes=64 * 2**20)
    alone = sh(ground, "hungry", hungry)
    child = command(ground, "hungry-child", "sh", "-c", 'sh -c "$1" || exit 7', "sh", hungry)
    for spec in (replace(alone, limits=limits), replace(child, limits=limits)):
        record = await run(containers, spec)
        assert record.cause is ExitCause.OUT_OF_MEMORY and record.code != 0, record
        assert b"survived" not in ground.output(key_of(spec))[0]
    modest = replace(sh(ground, "modest", "echo fine"), limits=limits)
    assert (await run(containers, modest)).cause is ExitCause.OWN


async def check_processors_beyond_the_limit_are_not_given(ground: Ground) -> None:
    containers = ground.open()
    spec = replace(sh(ground, "busy", "while :; do :; done"), limits=Limits(millicpus=200))
    key = key_of(spec)
    started: Observed = await containers.start(spec)
    assert started.notices == ()
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 1.0)
    used_s = (await containers.usage(key)).cpu_s
    elapsed_s = time.monotonic() - began
    await containers.end(key)
    await containers.wait(key, PATIENCE_S)
    assert used_s < 0.2 * elapsed_s + 0.15, (used_s, elapsed_s)


CHECKS: tuple[Check, ...] = (
    check_how_it_ended_is_told,
    check_what_cannot_start_says_why,
    check_a_signal_asks_the_whole_group,
    check_end_leaves_no_survivor,
    check_nothing_outlives_the_command,
    check_a_second_start_runs_nothing,
    check_each_incarnation_is_another,
    check_names_of_users_stay_names,
    check_another_object_takes_over,
    check_output_is_complete,
    check_reopening_the_terminal_loses_nothing,
    check_it_sees_only_what_it_was_given,
    check_usage_is_that_of_the_whole_tree,
    check_forgetting,
    check_what_makes_no_sense_is_refused,
    check_a_change_is_told,
)

LIMIT_CHECKS: tuple[Check, ...] = (
    check_memory_beyond_the_limit_is_told,
    check_processors_beyond_the_limit_are_not_given,
)
