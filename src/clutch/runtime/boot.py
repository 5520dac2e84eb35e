"""What runs before a member's command: fetch its code, meet its peers, then become the command.

    python -m clutch.runtime.boot -- COMMAND ARGUMENT...

It imports little, because every member pays for it. When boot itself fails it says one line on standard error and exits
with ``BOOT_CLUSTER`` (117) where the cluster is at fault and ``BOOT_REFUSED`` (118) where trying again would not help;
a command that cannot be executed is 127 (not found) or 126, as in a shell. Any other exit code is the command's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from clutch.runtime.info import Info, inherited, read_info
from clutch.wire.errors import BadRequest, ClutchError, TooLarge

if TYPE_CHECKING:
    from clutch.runtime.http import MasterConnection
    from clutch.runtime.launch.base import Launcher
    from clutch.wire.push import Roster

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
        if info.code:
            _place_code(info, environment)
        roster = _meet(info, environment) if info.rendezvous else None
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


def _meet(info: Info, environment: dict[str, str]) -> Roster:
    """Meet the peers; what they said is left in a file, our own secret key in the environment."""
    from clutch.backends.transports.keys import new_keys
    from clutch.runtime.client import PushClient
    from clutch.runtime.rendezvous import ReservedPort, meet, own_addresses
    from clutch.wire.push import Announce

    keys = new_keys()
    port = ReservedPort()  # closed by the kernel when the command takes our place
    client = PushClient.open(info, try_s=TRY_S)
    try:
        announce = Announce(
            addresses=own_addresses(info, client.connection.reach(within_s=info.meet_within_s)),
            ports=(port.number, *info.ports),
            public_key=keys.public,
            slots=info.slots,
            within_s=info.meet_within_s,
        )
        roster = meet(client, announce)
    finally:
        client.close()
    environment["CLUTCH_ROSTER_FILE"] = _write_roster(roster, environment)
    environment["CLUTCH_PUBLIC_KEY"] = keys.public
    environment["CLUTCH_SECRET_KEY"] = keys.secret
    return roster


def _write_roster(roster: Roster, environment: dict[str, str]) -> str:
    import tempfile

    import msgspec

    descriptor, path = tempfile.mkstemp(".json", "clutch-roster-", environment.get("TMPDIR") or None)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(roster))
    return path


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
    sys.stderr.write(f"clutch boot: {' '.join(said.split())}\n")
    sys.stderr.flush()
    os._exit(code)  # nothing of ours needs cleaning, and a thread of a library may not hold us


if __name__ == "__main__":
    start(sys.argv[1:])
