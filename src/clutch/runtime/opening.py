"""How a run is put together: as a member of a task, detached, or by itself. The composition root of a training script.

Nothing here waits for a master, except the beginning of a detached run. HTTP is first imported by the threads that
speak it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from clutch.runtime.context import Parts, Run
from clutch.runtime.hparams import Hparams, laid_over
from clutch.runtime.info import Info, read_info
from clutch.runtime.leaving import Leaving
from clutch.runtime.reporting import Reporter
from clutch.runtime.trial import Trial, read_trial
from clutch.wire.errors import BadRequest, Conflict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from clutch.runtime.collective.together import Together
    from clutch.runtime.detached import Place
    from clutch.runtime.local import LocalFolder
    from clutch.runtime.reporting import Outlet
    from clutch.runtime.saving import SharedKeeper
    from clutch.runtime.searching import Search
    from clutch.runtime.shipping import Voice
    from clutch.runtime.spool import Spool
    from clutch.runtime.trial_client import TrialClient
    from clutch.wire.push import Preemption

T = TypeVar("T")
TRY_S = 10.0
SHIP_TRY_S = 2.0


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What ``clutch.init`` was told."""

    hparams: Mapping[str, Any] | None = None
    name: str = ""
    project: str = ""
    resume: str | os.PathLike[str] | bool | None = None
    max_length: int = 0
    detached: bool | None = None
    distributed: Any = None
    """A ``Group``, ``torch``, ``environment``, False; None: as the cluster has started it."""
    preempt_mode: str = "workers-ask-chief"
    on_peer_lost: str = "end"


def open_run(given: Given, find_place: Callable[[], Place], info: Info | None = None) -> Run:
    """A run, as this process's surroundings want it. ``find_place`` finds the cluster of a detached one."""
    info = info if info is not None else read_info()
    if info.on_cluster:
        return _member(given, info, read_trial(info.trial), _together(given, info))
    if info.detached if given.detached is None else given.detached:
        return _detached(given, info, find_place)
    return _alone(given, info, _together(given, info))


# -- the three ways ------------------------------------------------------------------------------------------------


def _member(given: Given, info: Info, trial: Trial, together: Together | None) -> Run:
    _check_storage(trial)
    parts, _ = _speaking(given, info, trial, together)
    _watch_silence(parts)
    if together is not None:
        from clutch.runtime.collective.joining import parting

        parts.parting = parting(together, info, given.on_peer_lost, _say)
    return Run(parts)


def _detached(given: Given, info: Info, find_place: Callable[[], Place]) -> Run:
    from clutch.runtime.detached import Attendance, begin
    from clutch.wire.experiment_api import BeginDetached

    hparams = laid_over(given.hparams or {}, _said_hparams(info))
    name = given.name or _script()
    wanted = BeginDetached(
        name=name,
        key=str(given.resume)
        if isinstance(given.resume, str) and given.resume
        else info.resume or os.urandom(16).hex(),
        hparams=_jsonable(hparams),
        project=given.project,
    )
    if given.distributed not in (None, False) or given.preempt_mode != "workers-ask-chief":
        raise BadRequest(
            "a detached run is one process",
            object="run",
            next_step="Call clutch.init(detached=True) on rank 0 only, without distributed.",
        )
    if info.process_rank != 0:
        raise Conflict(
            f"the process of rank {info.process_rank} cannot report a detached run",
            object="run",
            next_step="Call clutch.init(detached=True) on rank 0 only.",
        )
    info, begun = begin(find_place(), wanted, info)
    number = begun.task.rpartition(".")[2].partition("-")[0]
    trial = Trial(
        experiment=begun.experiment, trial=int(number) if number.isdecimal() else 1, name=name, hparams=hparams
    )
    parts, leaving = _speaking(given, info, trial)
    leaving.catch_signals()
    attendance = Attendance(_client_of(info, TRY_S), begun.heartbeat_s, leaving.replaced)
    attendance.start()
    parts.on_end.append(lambda failed, detail: attendance.close(failed=failed, detail=detail))
    return Run(parts)


def _alone(given: Given, info: Info, together: Together | None) -> Run:
    hparams = laid_over(given.hparams or {}, _said_hparams(info))
    name, now = given.name or _script(), time.time()
    resume = given.resume if given.resume is not None else info.resume

    def made() -> LocalFolder:
        from clutch.runtime.local import LocalFolder, choose_folder

        about = {"name": name, "hparams": hparams, "began_at": now, "argv": sys.argv}
        if together is None:
            return LocalFolder(choose_folder(resume, name, now), about)
        return LocalFolder(Path(together.from_chief(lambda: str(choose_folder(resume, name, now).absolute()))), about)

    folder = _once(made)
    if together is not None:
        from pathlib import Path

        folder()  # ranks that are together have one: rank 0's
    leaving = Leaving(None, _say, together)
    leaving.catch_signals()
    return Run(
        Parts(
            info=info,
            trial=Trial(name=name, hparams=hparams, max_time=given.max_length),
            hparams=Hparams(hparams),
            reporter=Reporter(lambda: _local_outlet(folder())),
            leaving=leaving,
            keeper=lambda: _local_keeper(folder()),
            search=lambda: _alone_search(given.max_length, folder()),
            output=lambda: folder().made(),
            say=_say,
            together=together,
        )
    )


def _speaking(
    given: Given, info: Info, trial: Trial, together: Together | None = None
) -> tuple[Parts, Leaving]:  # fmt: skip
    """A run with a master."""
    from clutch.runtime.preempt import PreemptionWatch

    hears = together is None or together.is_chief or given.preempt_mode == "workers-ask-master"
    watch = PreemptionWatch(info).start() if hears else None
    leaving = Leaving(watch, _say, together, lambda: _why(info))
    client = _client_of(info, TRY_S)
    hparams = laid_over(laid_over(given.hparams or {}, {} if trial.experiment else _said_hparams(info)), trial.hparams)

    def declare() -> None:
        voice = client()
        try:
            voice.finished()
        finally:
            voice.close()

    return Parts(
        info=info,
        trial=trial,
        hparams=Hparams(hparams),
        reporter=Reporter(lambda: _shipper(info, leaving)),
        leaving=leaving,
        keeper=lambda: _keeper(info, trial, client),
        search=lambda: _search(given, trial, client),
        output=_once(lambda: _new_folder(info)),
        declare_finished=declare,
        say=_say,
        together=together,
    ), leaving


# -- several ranks -------------------------------------------------------------------------------------------------


def _together(given: Given, info: Info) -> Together | None:
    """The other processes of this run. Waits until they have come, where there are any."""
    plain = given.distributed is None and given.preempt_mode == "workers-ask-chief" and given.on_peer_lost == "end"
    if plain and not (info.on_cluster and info.process_size > 1):
        return None
    from clutch.runtime.collective.joining import join

    return join(given.distributed, given.preempt_mode, given.on_peer_lost, info)


def _why(info: Info) -> Preemption | None:
    """What the master has said to another rank."""
    from clutch.runtime.client import PushClient
    from clutch.wire.errors import ClutchError

    client = PushClient.open(info, try_s=SHIP_TRY_S)
    try:
        return client.preemption(0.0)
    except ClutchError:
        return None
    finally:
        client.close()


def _watch_silence(parts: Parts) -> None:
    """A process that hangs shows where; SIGUSR1 asks it to."""
    from clutch.runtime.silence import RESTART, Silence, show_stacks_on_signal

    show_stacks_on_signal()
    trial, info = parts.trial, parts.info
    if trial.no_report_timeout_s <= 0:
        return
    group = parts.together.group if parts.together is not None else None
    parts.silence = Silence(
        trial.no_report_timeout_s,
        restart=trial.no_report_action == RESTART,
        who=f"rank {info.process_rank} of {info.process_size}",
        calls=lambda: sum(list(group._calls.made.values())) if group is not None else 0,
        say=_say,
    ).start()


# -- parts ---------------------------------------------------------------------------------------------------------


def _client_of(info: Info, try_s: float) -> Callable[[], TrialClient]:
    def opened() -> TrialClient:
        from clutch.runtime.http import MasterConnection
        from clutch.runtime.trial_client import TrialClient

        return TrialClient(MasterConnection(info.masters, info.token, ca_file=info.ca_file), try_s=try_s)

    return opened


def _voice_of(info: Info) -> Callable[[], Voice]:
    def opened() -> Voice:
        from clutch.runtime.client import PushClient

        return PushClient.open(info, try_s=SHIP_TRY_S)

    return opened


def _shipper(info: Info, leaving: Leaving) -> Outlet:
    from clutch.runtime.shipping import Shipper

    return Shipper(_voice_of(info), lambda: _open_spool(info), leaving.replaced, _say)


def _local_outlet(folder: LocalFolder) -> Outlet:
    from clutch.runtime.local import LocalOutlet

    return LocalOutlet(folder, _say)


def _local_keeper(folder: LocalFolder) -> SharedKeeper:
    from clutch.runtime.local_keeper import LocalKeeper

    return LocalKeeper(folder)


def _alone_search(length: int, folder: LocalFolder) -> Search:
    from clutch.runtime.searching import AloneSearch

    return AloneSearch(length, folder.metadata(), folder.keep_metadata)


def _keeper(info: Info, trial: Trial, client: Callable[[], TrialClient]) -> SharedKeeper:
    from clutch.runtime.cluster_keeper import ClusterKeeper

    return ClusterKeeper(info, trial, client, _say)


def _check_storage(trial: Trial) -> None:
    """A folder that this user may not write to is found before the training, not after it."""
    if b'"file:///' in bytes(trial.storage):
        from clutch.runtime.checkpoint_ways import check_folder
        from clutch.wire.experiments import Storage

        check_folder(msgspec.json.decode(trial.storage, type=Storage).address)


def _search(given: Given, trial: Trial, client: Callable[[], TrialClient]) -> Search:
    from clutch.runtime.searching import AloneSearch, TrialSearch

    return TrialSearch(client) if trial.experiment else AloneSearch(given.max_length)


def spool_name(info: Info) -> str:
    """The spool's folder below the member's temporary one. An incarnation has one spool; the token tells those of two
    clusters apart."""
    from hashlib import sha256

    said = re.sub(r"[^A-Za-z0-9._-]", "-", f"{info.task}-{info.role}-{info.role_rank}-{info.fence}")
    return f"clutch-metrics-{said}-{sha256(info.token.encode()).hexdigest()[:12]}"


def _open_spool(info: Info) -> Spool:
    import tempfile
    from pathlib import Path

    from clutch.runtime.spool import Spool

    name = spool_name(info)
    for parent in (info.tmp, tempfile.gettempdir(), "/dev/shm"):
        if not parent:
            continue
        try:
            return Spool(Path(parent) / name)
        except OSError:
            continue  # a disk that is full or not ours; the next one may do
    return Spool(Path(tempfile.mkdtemp(prefix="clutch-metrics-")))


# -- what was said -------------------------------------------------------------------------------------------------


def _said_hparams(info: Info) -> dict[str, Any]:
    """``CLUTCH_HPARAMS`` and behind it ``--hparams JSON`` of the command line, which outranks it."""
    found: dict[str, Any] = _json_object(info.hparams, "CLUTCH_HPARAMS") if info.hparams else {}
    arguments = sys.argv[1:]
    for place, word in enumerate(arguments):
        if word == "--hparams" and place + 1 < len(arguments):
            found = laid_over(found, _json_object(arguments[place + 1], "--hparams"))
        elif word.startswith("--hparams="):
            found = laid_over(found, _json_object(word.partition("=")[2], "--hparams"))
    return found


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"it is not JSON: {error}", object=where, next_step="Say e.g. '{\"lr\": 0.1}'.") from error
    if not isinstance(found, dict):
        raise BadRequest("it is not a JSON object", object=where, next_step="Say e.g. '{\"lr\": 0.1}'.")
    return found


def _jsonable(hparams: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(msgspec.json.decode(msgspec.json.encode(hparams)))
    except (TypeError, msgspec.MsgspecError) as error:
        raise BadRequest(f"they are not JSON: {error}", object="hyperparameters") from error


def _script() -> str:
    first = sys.argv[0] if sys.argv else ""
    return os.path.splitext(os.path.basename(first))[0] if first not in ("", "-c", "-") else "run"  # noqa: PTH119, PTH122 -- pathlib costs 4 ms


def _new_folder(info: Info) -> Path:
    import tempfile
    from pathlib import Path

    return Path(tempfile.mkdtemp(prefix="clutch-output-", dir=info.tmp or None))


def _once(make: Callable[[], T]) -> Callable[[], T]:
    made: list[T] = []
    alone = threading.Lock()

    def given() -> T:
        with alone:
            if not made:
                made.append(make())
            return made[0]

    return given


def _say(words: str) -> None:
    """One line on standard error; a program without one is not told."""
    try:
        sys.stderr.write(f"clutch: {' '.join(words.split())}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return
