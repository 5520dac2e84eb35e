"""Whose a folder of blobs is: one user's, or shared by users who cannot touch each other's blobs.

A *shared* folder is one like ``/tmp``: everybody may add to it, and only the owner of an entry may rename or remove it.
So are the folders in it in which several users add: ``.clutch``, ``.clutch/parts`` and ``checkpoints``. Only root or
the owner of the folder makes these, for whoever owns one of them could rename what others put there. What a user makes
in a shared folder is written by that user alone; the umask says who may read it.

What root makes in a folder of somebody else's belongs to that one. Everything here blocks and runs in a thread.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from clutch.backends.blobs.keys import RESERVED
from clutch.wire.errors import NotAllowed

SHARED_MODE = 0o1777
CHECKPOINTS = "checkpoints"
"""The folder of blobs in which checkpoints are kept, each in its own."""
_INNER = ((RESERVED,), (RESERVED, "parts"), (CHECKPOINTS,))
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = 0


def is_shared(about: os.stat_result) -> bool:
    """Whether everybody may add to this folder and nobody may remove what others added."""
    return bool(about.st_mode & stat.S_ISVTX and about.st_mode & stat.S_IWOTH)


class Heritage:
    """What is made in a folder of blobs, and for whom."""

    def __init__(self, root: Path) -> None:
        about = root.stat()
        self._owner, self._group = about.st_uid, about.st_gid
        self._user = os.geteuid()
        self.is_shared = is_shared(about)

    @property
    def file_mode(self) -> int:
        return 0o644 if self.is_shared else 0o666

    def make(self, folder: Path) -> None:
        """A new folder in it. ``FileExistsError`` if it is there."""
        folder.mkdir(mode=0o755 if self.is_shared else 0o777)
        if self._user == _ROOT and self._owner != _ROOT and not self.is_shared:
            descriptor = os.open(folder, _FOLDER)
            try:
                os.fchown(descriptor, self._owner, self._group)
            finally:
                os.close(descriptor)

    def check(self, folder: Path) -> None:
        """``NotAllowed`` if another user could change what we put into this folder."""
        if not self.is_shared:
            return
        about = folder.lstat()
        trusted = (self._user, self._owner, _ROOT) if is_shared(about) else (self._user,)
        if stat.S_ISLNK(about.st_mode) or (self._user != _ROOT and about.st_uid not in trusted):
            raise NotAllowed(
                f"it belongs to uid {about.st_uid}, and this is uid {self._user}",
                object=f"folder {folder}",
                next_step="Have the owner of the shared folder run 'clutch checkpoint share FOLDER'.",
            )


def share(root: Path) -> None:
    """Let every user keep checkpoints in this folder, each their own. Only root or its owner can; twice is once."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot(root, error) from error
    try:
        owner = os.fstat(descriptor)
        _open_to_all(descriptor, owner)
        for steps in _INNER:
            _make_shared(descriptor, steps, owner)
    except OSError as error:
        raise _cannot(root, error) from error
    finally:
        os.close(descriptor)


def _make_shared(root: int, steps: tuple[str, ...], owner: os.stat_result) -> None:
    """By descriptors: a link that somebody has put in the place of one of these folders is not followed."""
    at = os.dup(root)
    try:
        for number, name in enumerate(steps):
            if number == len(steps) - 1:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=at)
            inner = os.open(name, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        _open_to_all(at, owner)
    finally:
        os.close(at)


def _open_to_all(descriptor: int, owner: os.stat_result) -> None:
    about = os.fstat(descriptor)
    if about.st_uid != owner.st_uid:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    if stat.S_IMODE(about.st_mode) != SHARED_MODE:
        os.fchmod(descriptor, SHARED_MODE)


def _cannot(root: Path, error: OSError) -> NotAllowed:
    return NotAllowed(
        f"it cannot be shared: {error.strerror or error}",
        object=f"folder {root}",
        next_step="Make it first, and call this as root or as the owner of the folder and all that is in it.",
    )
