"""What starts the processes of a trial on each node, as it is written: one type for each launcher."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from clutch.wire.programs import (
    GRACE_S,
    PROCESSES_MAX,
    AccelerateLaunch,
    Launching,
    OwnLaunch,
    PlainLaunch,
    RanksLaunch,
    TorchrunLaunch,
)
from clutch.workloads.experiment.config.model_base import Flag, Number, Whole, Written
from clutch.workloads.experiment.config.model_storage import class_named

Arguments = Annotated[list[str], Field(max_length=1000)]


class WrittenLaunch(Written):
    """What starts the processes of a trial."""


class WrittenPlainLaunch(WrittenLaunch):
    """The program itself, once on each node."""

    name: Literal["plain"]


class _Several(WrittenLaunch):
    processes: Whole = Field(
        0, ge=0, le=PROCESSES_MAX, description="On each node; 0: one for each of its slots, at least one."
    )
    oversubscribe: Flag = Field(False, description="More processes than slots are meant: several share a device.")
    grace: Number = Field(
        GRACE_S, ge=0, le=3600, description="When a rank has failed, the others have so many seconds to end."
    )


class WrittenRanks(_Several):
    """The program once for each slot, whatever it is."""

    name: Literal["ranks"]
    share_devices: Flag = Field(False, description="Every rank sees all devices of its node; else only its own.")


class WrittenTorchrun(_Several):
    """PyTorch's launcher."""

    name: Literal["torchrun"]
    arguments: Arguments = Field([], description="More words for the launcher.")


class WrittenAccelerate(_Several):
    """Hugging Face's launcher."""

    name: Literal["accelerate"]
    arguments: Arguments = Field([], description="More words for the launcher.")


class WrittenOwnLaunch(_Several):
    """A class of your own code that says what to start."""

    name: Literal["class"]
    class_: Annotated[str, AfterValidator(class_named)] = Field(alias="class", description="MODULE:CLASS.")
    options: dict[str, Any] = Field({}, description="Its keyword arguments.")


LAUNCHES: dict[str, type[WrittenLaunch]] = {
    "plain": WrittenPlainLaunch, "ranks": WrittenRanks, "torchrun": WrittenTorchrun, "accelerate": WrittenAccelerate,
    "class": WrittenOwnLaunch,
}  # fmt: skip
Launch = Annotated[
    WrittenPlainLaunch | WrittenRanks | WrittenTorchrun | WrittenAccelerate | WrittenOwnLaunch,
    Field(discriminator="name"),
]


def launching_of(written: WrittenLaunch, options: dict[str, Any]) -> Launching:
    """The frozen launcher of a checked one; ``options`` exactly as they were written."""
    if not isinstance(written, _Several):
        return PlainLaunch()
    said: dict[str, Any] = {
        "processes": written.processes,
        "oversubscribe": written.oversubscribe,
        "grace_s": float(written.grace),
    }
    match written:
        case WrittenRanks():
            return RanksLaunch(share_devices=written.share_devices, **said)
        case WrittenTorchrun():
            return TorchrunLaunch(arguments=tuple(written.arguments), **said)
        case WrittenAccelerate():
            return AccelerateLaunch(arguments=tuple(written.arguments), **said)
        case WrittenOwnLaunch():
            return OwnLaunch(spot=written.class_, options=options, **said)
    raise AssertionError(f"{type(written).__name__} has no launcher")
