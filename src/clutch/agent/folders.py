"""Working folders of members on this machine, and what the agent must still know of each after its own restart.

::

    WORK/NAME/          named like the member's directory
        cwd/            where the command begins, empty but for its mounts
        tmp/            its TMPDIR
        note            backend, ports, notices: an agent that comes later needs them
    WORK/../tmp/HASH    a link to that tmp, which is what the member is told: the path of a unix socket has at most 107
                        bytes, and Python's multiprocessing makes its sockets there
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path

import msgspec

from clutch.agent.directory import name_of
from clutch.backends.containers.base import Key
from clutch.wire.containers import RunAs
from clutch.wire.errors import BadRequest
from clutch.wire.programs import Mount

NOTE, TMP = "note", "tmp"
LINK_SIGNS = 12


class Note(msgspec.Struct, frozen=True):
    """How an incarnation was started."""

    backend: str = "process"
    ports: tuple[int, ...] = ()
    leave_signal: int = 0
    notices: tuple[str, ...] = ()
    boots: bool = False
    """Its command runs behind ``clutch.runtime.boot``, whose own failures have codes of their own."""
    inside: bool = False
    """That boot is in its container, and needs what the image may not have."""


class Folder(msgspec.Struct, frozen=True):
    cwd: Path
    tmp: Path
    """By a short path."""


class WorkFolders:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._links = root.parent / TMP
        for folder in (root, self._links):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)

    def path(self, key: Key) -> Path:
        return self.root / name_of(key)

    def _link(self, name: str) -> Path:
        return self._links / hashlib.sha256(name.encode()).hexdigest()[:LINK_SIGNS]

    def make(self, key: Key, run_as: RunAs | None, mounts: tuple[Mount, ...], *, anybodys: bool = False) -> Folder:
        """Fresh folders that belong to whom the member runs as, with a link for each mount.

        ``anybodys``: only its image knows whom that is. Then everybody in the container may use them, and on the node
        nobody but the agent's user gets there.
        """
        top = self.path(key)
        self.remove(key)  # of an attempt that ended before the start
        cwd, tmp = top / "cwd", top / TMP
        top.mkdir(mode=0o700 if anybodys else 0o711)
        for path in (cwd, tmp):
            path.mkdir(mode=0o700)
            if anybodys:
                path.chmod(0o777)  # whatever the umask
        for mount in mounts:
            _link(mount, cwd)
        if run_as is not None and run_as.uid != os.geteuid():
            for path in (cwd, tmp):
                os.chown(path, run_as.uid, run_as.gid)
        short = self._link(top.name)
        short.symlink_to(tmp.absolute())
        return Folder(cwd, short)

    def keep(self, key: Key, note: Note) -> None:
        """Written aside and renamed: it is there before the command is."""
        path = self.path(key) / NOTE
        aside = path.with_name(f".{NOTE}")
        aside.write_bytes(msgspec.json.encode(note))
        aside.replace(path)

    def note(self, key: Key) -> Note:
        try:
            return msgspec.json.decode((self.path(key) / NOTE).read_bytes(), type=Note)
        except (OSError, msgspec.DecodeError):
            return Note()

    def remove(self, key: Key) -> None:
        path = self.path(key)
        shutil.rmtree(path, ignore_errors=True)
        self._link(path.name).unlink(missing_ok=True)

    def clear_all_but(self, keys: list[Key]) -> None:
        """Remove what an agent left that died between making a folder and starting its member."""
        kept = {name_of(key) for key in keys}
        for entry in os.scandir(self.root):
            if entry.name not in kept:
                shutil.rmtree(entry.path, ignore_errors=True)
        for link in self._links.iterdir():
            if link.is_symlink() and not link.exists():
                link.unlink()


def is_anybodys(folder: os.stat_result) -> bool:
    """Whether it was made so: what is in it belongs to whom an image runs as, which nobody here can know."""
    return bool(folder.st_mode & stat.S_IWOTH)


def home_of(run_as: RunAs | None) -> str:
    """The home of whom it runs as; ``/`` for a user the machine does not know."""
    try:
        return pwd.getpwuid(run_as.uid if run_as is not None else os.geteuid()).pw_dir
    except KeyError:
        return "/"


def _link(mount: Mount, cwd: Path) -> None:
    """A plain process sees the machine as it is, so a mount is a link inside its folder. Outside of it nothing is
    made: a link there would stay for everybody."""
    source, target = Path(mount.source), Path(mount.target)
    if target.is_absolute():
        if target.resolve() == source.resolve():
            return
        raise BadRequest(
            f"a plain process cannot have {source} mounted at {target}",
            object=str(target),
            next_step="Give a target inside its working directory, or use an image.",
        )
    place = cwd / target
    if not place.resolve().is_relative_to(cwd.resolve()):
        raise BadRequest("the mount's target leaves the working directory", object=str(target))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(source.absolute())
