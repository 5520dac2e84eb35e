"""The process over the ranks of one member: it starts them, marks what they print, and tells which of them failed.

    ranks  --first F --count N [--own-devices] [--grace S] -- COMMAND ARGUMENT...
    around [--grace S] [--advice TEXT] -- LAUNCHER ARGUMENT...
    one [COMMAND ARGUMENT...]

``ranks`` starts the command N times. ``around`` starts a launcher of somebody else's (torchrun), which starts ``one``
for each rank; those say over a FIFO how they failed. In either way every line of a rank begins with ``[rank=N] ``; when
a rank fails the others are asked to end and killed a grace later; and the exit code is that of the rank that failed
first (a rank that a signal killed: the same signal), with its last lines on standard error and in the file that
``CLUTCH_LAST_WORDS`` names, from which the agent tells the master.
"""

from __future__ import annotations

import collections
import contextlib
import os
import resource
import signal
import tempfile
from pathlib import Path
from typing import NoReturn

import msgspec

from clutch.runtime.info import inherited
from clutch.runtime.last_words import keep
from clutch.runtime.launch.ends import REASON_MAX, End
from clutch.runtime.launch.lines import TAIL_LINES, Lines, Raw
from clutch.runtime.launch.supervisor import ENDS, FORWARDED, Supervisor, dies_with_parent, start, write_all
from clutch.wire.programs import GRACE_S

NOT_FOUND, NOT_EXECUTABLE, REFUSED = 127, 126, 118
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
LOCK, LAST_WORDS = "lock", "CLUTCH_LAST_WORDS"


def rank_environment(common: dict[str, str], first: int, local: int, count: int, own_devices: bool) -> dict[str, str]:
    """What one of ``count`` ranks sees besides what they have in common."""
    found = {**common, "RANK": str(first + local), "LOCAL_RANK": str(local), **own_words(common, first + local)}
    if own_devices:
        for name in DEVICES:
            devices = [word for word in common.get(name, "").split(",") if word]
            if devices:
                found[name] = ",".join(devices_of(devices, local, count))
    return found


def own_words(common: dict[str, str], rank: int | str) -> dict[str, str]:
    """Each rank says in a file of its own why it ended."""
    path = common.get(LAST_WORDS, "")
    return {LAST_WORDS: f"{path}.{rank}"} if path else {}


def devices_of(devices: list[str], local: int, count: int) -> list[str]:
    """Shared out in order; with more ranks than devices several ranks have the same one."""
    if count >= len(devices):
        return [devices[local * len(devices) // count]]
    return devices[local * len(devices) // count : (local + 1) * len(devices) // count]


def ranks(options: dict[str, str], argv: list[str], environment: dict[str, str]) -> None:
    first, count = int(options["first"]), int(options["count"])
    supervisor = Supervisor(float(options.get("grace", GRACE_S)), told=keep_end)
    tails: dict[str, collections.deque[bytes]] = {}
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    for local in range(count):
        who = f"rank {first + local}"
        tail = tails[who] = collections.deque(maxlen=TAIL_LINES)
        prefix = b"[rank=%d] " % (first + local)
        around = rank_environment(environment, first, local, count, "own-devices" in options)
        try:
            process = start(argv, around)
        except (OSError, ValueError) as error:
            leave(*not_started(argv[0], error))
        supervisor.add(who, process, [Lines(prefix, tail), Lines(prefix, tail)], around.get(LAST_WORDS, ""))
    supervisor.passes_signals_on()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    supervisor.run(tails)
    finish(supervisor)


def around(options: dict[str, str], argv: list[str], environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="clutch-ranks-") as folder:
        supervisor = Supervisor(float(options.get("grace", GRACE_S)), folder, told=keep_end)
        who = f"launcher {Path(argv[0]).name}"
        tails = {who: collections.deque[bytes](maxlen=TAIL_LINES)}
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            process = start(argv, {**environment, "CLUTCH_RANKS_FOLDER": folder})
        except FileNotFoundError:
            advice = options.get("advice", f"launcher {argv[0]!r}: there is no such command on this node.")
            leave(REFUSED, f"boot: {advice}")
        except (OSError, ValueError) as error:
            leave(*not_started(argv[0], error))
        supervisor.add(who, process, [Raw(tails[who]), Raw(tails[who])])
        supervisor.passes_signals_on()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        supervisor.run(tails)
    finish(supervisor)


def one(argv: list[str], environment: dict[str, str]) -> None:
    """A rank under somebody else's launcher."""
    dies_with_parent()
    folder = environment.get("CLUTCH_RANKS_FOLDER", "")
    ends = _speaking_to(folder)
    argv = argv or msgspec.json.decode(environment.pop("CLUTCH_COMMAND", "[]"), type=list[str])
    rank = next((environment[name] for name in RANK_VARIABLES if environment.get(name, "").isdecimal()), "?")
    lock = os.open(Path(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if folder else -1
    supervisor = Supervisor(GRACE_S, lock=lock)
    tail: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)
    who, prefix = f"rank {rank}", f"[rank={rank}] ".encode()
    environment |= own_words(environment, rank)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        process = start(argv, environment)
        supervisor.add(who, process, [Lines(prefix, tail), Lines(prefix, tail)], environment.get(LAST_WORDS, ""))
    except (OSError, ValueError) as error:
        code, said = not_started(argv[0], error)
        tell(ends, End(who, code, [said]))
        leave(code, said, speaks=False)
    supervisor.passes_signals_on()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    supervisor.run({who: tail})
    if supervisor.failure is not None:
        tell(ends, supervisor.failure)
    code = supervisor.children[0].process.returncode
    end_with(code)


def _speaking_to(folder: str) -> int:
    """The process around our launcher; -1: there is none. Open as long as this rank lives."""
    try:
        return os.open(Path(folder, ENDS), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC) if folder else -1
    except OSError:
        return -1


def tell(ends: int, end: End) -> None:
    """How this rank failed, before its launcher can know."""
    if ends >= 0:
        with contextlib.suppress(OSError):  # nobody listens: our exit code still says it
            tail = [] if end.follows else end.tail
            said = (end.who, end.code, tail, end.words[:REASON_MAX] if end.follows else "", end.asked)
            os.write(ends, msgspec.json.encode(said) + b"\n")


def not_started(program: str, error: Exception) -> tuple[int, str]:
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND, f"command {program!r}: there is no such command on this node."
    return NOT_EXECUTABLE, f"command {program!r}: it cannot be executed: {error}."


def finish(supervisor: Supervisor) -> NoReturn:
    """As the rank that failed first; as the signal that was passed on, if it was obeyed; or well."""
    if supervisor.failure is not None:
        keep_end(supervisor.failure)
        write_all(2, f"clutch: {supervisor.failure.paragraph()}\n".encode())
        end_with(supervisor.failure.code)
    codes = [child.process.returncode for child in supervisor.children if child.process.returncode]
    end_with(-supervisor.asked[0] if codes and supervisor.asked else 0)


def leave(code: int, said: str, speaks: bool = True) -> NoReturn:
    """Nothing more can be done; what was started dies with us."""
    if speaks:
        keep_words(said)
        write_all(2, f"clutch {said}\n".encode() if said.startswith("boot: ") else f"clutch boot: {said}\n".encode())
    os._exit(code)


def keep_words(said: str) -> None:
    """For the agent, which tells the master why this member ended."""
    keep(inherited().get(LAST_WORDS, ""), said)


def keep_end(end: End) -> None:
    """As soon as it is known: this process may be ended before the last of its ranks is gone."""
    keep_words(end.last_words())


def end_with(code: int) -> NoReturn:
    """Exit with this code, or die of this signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no other way
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
        code = 128 - code
    os._exit(code)


def parsed(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options up to ``--``, then a command."""
    options: dict[str, str] = {}
    while words and words[0] != "--":
        name = words.pop(0)[2:]
        options[name] = "" if name == "own-devices" else words.pop(0)
    return options, words[1:]


def main(words: list[str]) -> None:
    environment = inherited()
    environment.pop("CLUTCH_HELD", None)  # ports that stay ours as long as this process lives
    way, rest = words[0], words[1:]
    if way == "one":
        one(rest, environment)
    else:
        options, argv = parsed(rest)
        {"ranks": ranks, "around": around}[way](options, argv, environment)
