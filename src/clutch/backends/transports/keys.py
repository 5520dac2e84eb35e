"""Key pairs, and whose keys are let in.

Each party makes its own pair at its start and gives only the public key away, through rendezvous or names. Keys are
CURVE's (Curve25519), written in Z85.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from clutch.wire.errors import BadRequest, Conflict, NotAllowed

KEY_CHARACTERS = 40
IPC_PATH_BYTES_MAX = 100
_Z85 = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")


class KeyPair(msgspec.Struct, frozen=True):
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def new_keys() -> KeyPair:
    """A fresh pair."""
    import zmq

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def check_key(key: str, whose: str) -> None:
    if len(key) != KEY_CHARACTERS or not _Z85.issuperset(key):
        raise BadRequest("this is no public key", object=whose, next_step=f"Give {KEY_CHARACTERS} characters of Z85.")


class AllowList:
    """Whose keys are let in, and in which name each speaks. May change while it is in use."""

    def __init__(self, keys: dict[str, str] | None = None) -> None:
        """``keys`` are public keys by name."""
        self._name_of: dict[str, str] = {}
        for name, key in (keys or {}).items():
            self.allow(name, key)

    def allow(self, name: str, public_key: str) -> None:
        """Let this key in under this name. A name may have several keys, a key only one name."""
        check_key(public_key, name)
        if self._name_of.get(public_key, name) != name:
            raise Conflict(f"the key belongs to {self._name_of[public_key]}", object=name, next_step="Make a new pair.")
        self._name_of[public_key] = name

    def forbid(self, public_key: str) -> None:
        """Let it in no more. A connection that stands is not cut, but nothing more is taken from it."""
        self._name_of.pop(public_key, None)

    def name_of(self, public_key: str) -> str | None:
        return self._name_of.get(public_key)


def check_private(endpoint: str) -> Path:
    """The path of an ``ipc://`` endpoint, whose folder must be ours alone: it is the only lock on that door."""
    path = Path(endpoint.removeprefix("ipc://"))
    if not path.is_absolute() or len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
        raise BadRequest(
            "not a usable path",
            object=endpoint,
            next_step=f"Give ipc:// and at most {IPC_PATH_BYTES_MAX} bytes of path.",
        )
    try:
        status = path.parent.lstat()
    except OSError as error:
        raise BadRequest(f"its folder: {error.strerror}", object=endpoint, next_step="Make it, mode 0700.") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise NotAllowed(
            "its folder is not private",
            object=endpoint,
            next_step="Use a folder of your own with mode 0700, or tcp://.",
        )
    return path
