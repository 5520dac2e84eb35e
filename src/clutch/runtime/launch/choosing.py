"""From the setting ``launch`` of a program to the launcher that it means."""

from __future__ import annotations

import msgspec

from clutch.runtime.launch.base import Launcher
from clutch.wire.errors import BadRequest
from clutch.wire.programs import AccelerateLaunch, Launching, OwnLaunch, PlainLaunch, RanksLaunch, TorchrunLaunch


def read_launching(said: str) -> Launching:
    """What ``CLUTCH_LAUNCH`` says; plain where it says nothing."""
    if not said:
        return PlainLaunch()
    try:
        return msgspec.json.decode(said, type=Launching)  # type: ignore[no-any-return]  # a union is no type to mypy
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"it does not name a launcher: {error}", object="environment variable CLUTCH_LAUNCH"
        ) from error


def launcher_for(said: Launching, folder: str) -> Launcher:
    """``folder``: where the program's code is."""
    match said:
        case RanksLaunch():
            from clutch.runtime.launch.ranks import Ranks

            return Ranks(said)
        case TorchrunLaunch():
            from clutch.runtime.launch.torchrun import Torchrun

            return Torchrun(said)
        case AccelerateLaunch():
            from clutch.runtime.launch.accelerate import Accelerate

            return Accelerate(said)
        case OwnLaunch():
            from clutch.runtime.launch.own import Own

            return Own(said, folder)
        case PlainLaunch():
            from clutch.runtime.launch.plain import Plain

            return Plain()
