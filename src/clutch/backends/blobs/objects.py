"""What ``ObjectBlobs`` needs of a store: whole objects with a few words beside them, put in one step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

Sink = Callable[[memoryview], None]
"""Takes the next bytes. Called in a thread of the client's; what it raises ends the call."""


class Objects(Protocol):
    """A bucket, or what acts like one."""

    async def get(self, key: str, options: Any = None) -> Any:
        """The object: ``attributes``, and ``meta`` with ``size``, ``last_modified`` and ``e_tag``.

        Its content is read by ``body``. ``options``: a ``range``, and which version (``if_match``).
        """
        ...

    async def body(self, result: Any) -> Any:
        """What an answer to ``get`` holds."""
        ...

    async def get_range(self, key: str, start: int, stop: int) -> Any: ...

    async def save_range(self, key: str, start: int, stop: int, sink: Sink) -> int:
        """Give the sink what lies there as it arrives, piece by piece; how much there was."""
        ...

    async def put(self, key: str, content: bytes | memoryview, attributes: Any, *, create: bool) -> None: ...

    async def delete(self, keys: str | Sequence[str]) -> None: ...

    def pages(self, folder: str | None, page_size: int = 1_000) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """What lies below a folder, a page at a time, each with ``path`` and ``last_modified``."""
        ...

    def close(self) -> None: ...
