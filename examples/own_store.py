"""A store of one's own for checkpoints: files in a folder, compressed. Four verbs are all there is to write.

Put this file into an experiment's working directory and name the class in its configuration:

    checkpoint_storage: {type: class, class: "own_store:CompressedFolder", options: {root: /mnt/cold}}
"""

import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote


class CompressedFolder:
    def __init__(self, root: str, level: int = 1) -> None:
        self.root = Path(root)
        self.level = level
        self.root.mkdir(parents=True, exist_ok=True)

    def _place(self, key: str) -> Path:
        name = quote(key, safe="").replace(".", "%2E")  # no '/' is left: every key is one file
        if len(name) > 200:  # in as many folders as a file name may not be long
            name = "/".join(name[at : at + 200] for at in range(0, len(name), 200))
        return self.root / f"{name}.z"

    def put(self, key: str, path: Path) -> None:
        place = self._place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        packer = zlib.compressobj(self.level)
        with path.open("rb") as source, tempfile.NamedTemporaryFile(dir=self.root, delete=False) as packed:
            while piece := source.read(1 << 20):
                packed.write(packer.compress(piece))
            packed.write(packer.flush())
            packed.flush()
            os.fsync(packed.fileno())
        Path(packed.name).replace(place)  # whole, or not there

    def get(self, key: str, path: Path) -> None:
        unpacker = zlib.decompressobj()
        try:
            with self._place(key).open("rb") as packed, path.open("wb") as target:
                while piece := packed.read(1 << 20):
                    target.write(unpacker.decompress(piece))
                target.write(unpacker.flush())
        except FileNotFoundError:
            raise KeyError(key) from None

    def list(self, prefix: str) -> Iterator[str]:
        for place in self.root.rglob("*.z"):
            key = unquote(str(place.relative_to(self.root)).replace("/", "")[: -len(".z")])
            if key.startswith(prefix):
                yield key

    def delete(self, key: str) -> None:
        self._place(key).unlink(missing_ok=True)
