"""Getting an image: what is asked of the engine, and how far it is, in words. Pure, standard library only."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

DONE = ("Pull complete", "Already exists", "Download complete")


def pull_path(image: str) -> str:
    """The question that pulls exactly this image; without a tag, an engine would pull all of them."""
    name, tag = image, ""
    if "@" not in image:
        before, colon, after = image.rpartition(":")
        if colon and "/" not in after:
            name, tag = before, after
        else:
            tag = "latest"
    return f"/images/create?fromImage={quote(name, safe='')}" + (f"&tag={quote(tag, safe='')}" if tag else "")


def registry(image: str) -> str:
    """The registry an image names; empty when it names none and the engine's own is meant."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""


def auth_header(image: str, auth: str) -> tuple[tuple[str, str], ...]:
    """``user:password`` as an engine wants it."""
    if not auth:
        return ()
    user, _, password = auth.partition(":")
    words = {"username": user, "password": password}
    if registry(image):
        words["serveraddress"] = registry(image)
    return (("X-Registry-Auth", base64.urlsafe_b64encode(json.dumps(words).encode()).decode()),)


class Progress:
    """A pull's reports, line by line."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.error = ""
        self._rest = b""
        self._layers: dict[str, tuple[int, int]] = {}  # bytes here, bytes in all
        self._done: set[str] = set()

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in filter(None, map(bytes.strip, lines)):
            self._hear(json.loads(line))

    def end(self) -> None:
        self.add(b"\n")

    def _hear(self, said: dict[str, object]) -> None:
        if "error" in said:
            self.error = str(said["error"])
        layer, status, detail = str(said.get("id", "")), said.get("status"), said.get("progressDetail")
        if status == "Pulling fs layer":
            self._layers.setdefault(layer, (0, 0))
        elif status == "Downloading" and isinstance(detail, dict):
            self._layers[layer] = (int(detail.get("current", 0)), int(detail.get("total", 0)))
        elif status in DONE and (layer in self._layers or status == "Already exists"):
            self._layers.setdefault(layer, (0, 0))
            self._done.add(layer)

    def text(self) -> str:
        """What a user may read while it lasts."""
        if not self._layers:
            return f"pulling {self.image}"
        here, whole = (sum(sizes) for sizes in zip(*self._layers.values(), strict=True))
        words = f"pulling {self.image}: {len(self._done)} of {len(self._layers)} layers"
        return words + (f", {here / 1e6:.0f} of {whole / 1e6:.0f} MB" if whole else "")
