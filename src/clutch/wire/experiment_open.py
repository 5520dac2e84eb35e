"""How an experiment begins: as a new one, or as one that was over and is wanted again."""

from __future__ import annotations

import msgspec

from clutch.wire.experiments import ExperimentSpec


class New(msgspec.Struct, frozen=True, tag="new"):
    spec: ExperimentSpec
    paused: bool = False
    """It is made, and waits to be resumed."""


class Reopen(msgspec.Struct, frozen=True, tag="reopen"):
    """From what ``ExperimentArchive`` holds of it."""

    archive: bytes


Open = New | Reopen

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Open] = msgspec.msgpack.Decoder(Open)


def new_experiment(spec: ExperimentSpec, paused: bool = False) -> bytes:
    """What ``OpenController`` carries for a new experiment."""
    return _encoder.encode(New(spec, paused))


def reopen(archive: bytes) -> bytes:
    """What ``OpenController`` carries for one that has ended: it closes itself again when it has done what it is
    told, or when nobody told it anything."""
    return _encoder.encode(Reopen(archive))


def opening(spec: bytes) -> Open:
    """Raises ``msgspec.MsgspecError`` when it is neither."""
    return _decoder.decode(spec)
