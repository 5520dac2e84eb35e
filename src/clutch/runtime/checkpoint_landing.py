"""A file of a checkpoint on its way into a folder of the caller's: beside its name until it is known to be right."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from clutch.backends.blobs.files import CHUNK_BYTES, typed
from clutch.wire.push import CheckpointFile


class Landed:
    """One file below ``target``."""

    def __init__(self, target: Path, file: CheckpointFile) -> None:
        self._file = file
        self._final = target / file.path
        name = hashlib.sha256(f"{file.path}\0{file.sha256}".encode()).hexdigest()[:32]
        self.aside = self._final.with_name(f".clutch-{name}")
        """Where it is written; the same after a crash, so that a download goes on."""

    def is_there(self) -> bool:
        """Whether the file has this content already; makes the folders if not."""
        with typed(f"file {self._final}"):
            self._final.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self._final.open("rb") as file:
                    if os.fstat(file.fileno()).st_size != self._file.size_bytes:
                        return False
                    digest = hashlib.sha256()
                    while piece := file.read(CHUNK_BYTES):
                        digest.update(piece)
            except FileNotFoundError:
                return False
        return digest.hexdigest() == self._file.sha256

    def name(self) -> None:
        """It is right: give it its name."""
        with typed(f"file {self._final}"):
            try:
                self.aside.replace(self._final)
            except FileNotFoundError:  # another has fetched the same file to the same place, and named it
                if not self._final.exists():
                    raise

    def discard(self) -> None:
        with suppress(OSError):
            self.aside.unlink(missing_ok=True)
