"""What runs before a member's command: fetch its code, meet its peers, then become the command, or what launches it.

    python -m clutch.runtime.boot -- COMMAND ARGUMENT...

Two layers. The rendezvous layer is always the same: code, addresses, keys, ranks. The launch layer is the program's
choice (``CLUTCH_LAUNCH``, see ``clutch.runtime.launch``): it says what is executed here, knowing the peers.

It imports little, because every member pays for it. When boot itself fails it says one line on standard error, leaves
it in the file ``CLUTCH_LAST_WORDS`` for the agent, and exits with ``BOOT_CLUSTER`` (117) where the cluster is at fault
and ``BOOT_REFUSED`` (118) where trying again would not help; a command that cannot be executed is 127 (not found) or
126, as in a shell. Any other exit code is the command's own.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from clutch.runtime.info import Info, inherited, read_info
from clutch.wire.errors import BadRequest, ClutchError, TooLarge

if TYPE_CHECKING:
    from clutch.runtime.http import MasterConnection
    from clutch.runtime.launch.base import Launcher
    from clutch.runtime.rendezvous import ReservedPort
    from clutch.wire.push import Announce, Roster

BOOT_CLUSTER, BOOT_REFUSED = 117, 118
"""As in ``clutch.wire.push``, which need not be imported for a member that only fetches code."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
CODE_WITHIN_S = 300.0
TRY_S = 5.0


def start(arguments: list[str]) -> NoReturn:
    """Boot as a process of its own, which the command takes over."""
    if "https:" not in inherited().get("CLUTCH_MASTERS", ""):
        sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # 6 ms that http.client can do without
    main(arguments)


def main(arguments: list[str], launcher: Launcher | None = None) -> NoReturn:
    argv = tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)
    try:
        if not argv:
            raise BadRequest("no command is given", object="boot", next_step="Say: -- COMMAND ARGUMENT...")
        info, environment = read_info(), inherited()
        launching = environment.pop("CLUTCH_LAUNCH", "")
        if info.code:
            _place_code(info, environment)
        roster, ports = None, list["ReservedPort"]()
        if info.rendezvous or launching:
            ports = _reserve()
            roster = _meet(info, environment, ports)
        if launching and launcher is None:
            launcher = _chosen(launching)
            environment["CLUTCH_HELD"] = ",".join(str(port.keep()) for port in ports)
        _become(argv, environment, roster, launcher)
    except ClutchError as error:
        refused = isinstance(error, BadRequest | TooLarge)
        _fail(BOOT_REFUSED if refused else BOOT_CLUSTER, str(error))


def _place_code(info: Info, environment: dict[str, str]) -> None:
    from clutch.runtime.code import place_code

    def connect() -> MasterConnection:
        from clutch.runtime.http import MasterConnection

        return MasterConnection(info.masters, info.token, ca_file=info.ca_file)

    here = Path.cwd()
    place_code(connect, info.code, here, info.cache, within_s=CODE_WITHIN_S)
    environment["PWD"] = str(here)


def _reserve() -> list[ReservedPort]:
    """The ports where processes of the program meet, should this be the chief: their own way, and ours."""
    from clutch.runtime.rendezvous import ReservedPort

    return [ReservedPort(), ReservedPort()]


def _meet(info: Info, environment: dict[str, str], ports: list[ReservedPort]) -> Roster:
    """Meet the peers; what they said is left in a file, our own secret key in the environment."""
    from clutch.backends.transports.keys import new_keys
    from clutch.runtime.rendezvous import LOOPBACK, alone
    from clutch.wire.push import Announce

    keys = new_keys()
    announce = Announce(
        addresses=(LOOPBACK,),
        ports=(*(port.number for port in ports), *info.ports),
        public_key=keys.public,
        slots=info.slots,
        within_s=info.meet_within_s,
    )
    roster = _met(info, announce) if info.rendezvous else alone(info, announce)
    environment["CLUTCH_ROSTER_FILE"] = _write_roster(roster, environment)
    environment["CLUTCH_PUBLIC_KEY"] = keys.public
    environment["CLUTCH_SECRET_KEY"] = keys.secret
    return roster


def _met(info: Info, announce: Announce) -> Roster:
    import msgspec

    from clutch.runtime.client import PushClient
    from clutch.runtime.rendezvous import meet, own_addresses

    client = PushClient.open(info, try_s=TRY_S)
    try:
        addresses = own_addresses(info, client.connection.reach(within_s=info.meet_within_s))
        return meet(client, msgspec.structs.replace(announce, addresses=addresses))
    finally:
        client.close()


def _write_roster(roster: Roster, environment: dict[str, str]) -> str:
    import tempfile

    import msgspec

    descriptor, path = tempfile.mkstemp(".json", "clutch-roster-", environment.get("TMPDIR") or None)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)  # there is no secret in it, and a rank may run as somebody else in its image
        file.write(msgspec.json.encode(roster))
    return path


def _chosen(launching: str) -> Launcher:
    from clutch.runtime.launch.choosing import launcher_for, read_launching

    return launcher_for(read_launching(launching), str(Path.cwd()))


def _become(
    argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None, launcher: Launcher | None
) -> NoReturn:  # fmt: skip
    if roster is not None or launcher is not None:
        from clutch.runtime.launch.plain import Plain

        launch = (launcher or Plain()).launch(argv, environment, roster)
        argv, environment = launch.argv, launch.environment
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        _fail(NOT_FOUND, f"command {argv[0]!r}: there is no such command on this node.")
    except (OSError, ValueError) as error:
        _fail(NOT_EXECUTABLE, f"command {argv[0]!r}: it cannot be executed: {error}.")


def _fail(code: int, said: str) -> NoReturn:
    words = f"boot: {' '.join(said.split())}"
    if path := inherited().get("CLUTCH_LAST_WORDS"):
        with suppress(OSError), open(path, "w", opener=_own_file) as file:
            file.write(words)
    sys.stderr.write(f"clutch {words}\n")
    sys.stderr.flush()
    os._exit(code)  # nothing of ours needs cleaning, and a thread of a library may not hold us


def _own_file(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


if __name__ == "__main__":
    start(sys.argv[1:])
