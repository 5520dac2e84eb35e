"""One checkpoint that all ranks write: each fills a folder and stores its part, rank 0 commits the whole, or nobody."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from clutch.runtime.checkpoint import hash_of
from clutch.runtime.checkpoint_folder import Found, files_in
from clutch.runtime.collective import sharding
from clutch.runtime.collective.together import WORK_WITHIN_S, Together, failure, plain
from clutch.runtime.distributed.session import machine_place
from clutch.runtime.saving import Begun, Kept, Saver, Wanted, words
from clutch.wire.errors import ClutchError, Conflict, TooLarge
from clutch.wire.push import FILES_MAX, SHA256_OF_NOTHING, CheckpointFile

if TYPE_CHECKING:
    from clutch.runtime.silence import Silence

FILL_WITHIN_S = 6 * 3600.0
"""How long the first rank that has written its part waits for the last."""


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says of the checkpoint that it writes a part of."""

    step: int
    label: str = ""
    metadata: Mapping[str, Any] | None = None
    folder: Path | None = None
    """The caller's own, which stays; else a new one that goes."""

    @property
    def what(self) -> str:
        return f"checkpoint of step {self.step}"


class ShardedSaving:
    """``with run.checkpoint(step, shard=True) as path``, on every rank. ``id`` is known when it is whole."""

    def __init__(self, saver: Saver, together: Together, shard: Shard, silence: Silence | None = None) -> None:
        self._saver = saver
        self._together = together
        self._shard = shard
        self._silence = silence
        self._folder: Path | None = None
        self._wanted: Wanted | None = None
        self.id = ""

    def __enter__(self) -> Path:
        try:
            self._folder = self._saver.begin(self._shard.step, self._shard.folder)
        except BaseException as error:
            self._give_up(error)
            raise
        return self._folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._give_up(error)
                return
            kept = self._save()
        finally:
            self._saver.give_up(self._folder if self._shard.folder is None else None)
        self._saver.saved(kept)
        self.id = kept.id

    def _give_up(self, error: BaseException) -> None:
        """The others learn at the end of their blocks that this rank has nothing to bring."""
        if isinstance(error, ClutchError) and self._together.has_failed:
            return
        with suppress(ClutchError):
            self._together.decided(failure(error, self._together.group.rank), error, list, FILL_WITHIN_S)

    # -- sync points, one after the other ----------------------------------------------------------------------------

    def _save(self) -> Kept:
        stores = self._filled()
        with self._silence or nullcontext():  # what follows has its own deadlines, and may take long
            left_out = self._left_out(stores)
            begun: Begun = msgspec.convert(self._together.from_chief(self._begin, WORK_WITHIN_S), Begun)
            return self._stored(begun, stores, left_out)

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return self._folder

    def _filled(self) -> bool:
        """All ranks have written their parts. Whether this one stores its folder."""
        shard, together = self._shard, self._together

        def bring() -> list[Any]:
            found = self._path.stat()
            place = f"{machine_place() or together.group.rank} {found.st_dev} {found.st_ino}"
            return [[shard.step, shard.label], place, plain(dict(shard.metadata or {}), f"metadata of {shard.what}")]

        def decide(every: list[Any]) -> list[bool]:
            for rank, (said, _, _) in enumerate(every):
                if said != every[0][0]:
                    raise Conflict(
                        f"rank 0 saves step {every[0][0][0]} {every[0][0][1]!r} while rank {rank} saves step {said[0]} "
                        f"{said[1]!r}",
                        object="checkpoint of all ranks",
                        next_step="Save the same step on every rank.",
                    )
            metadata = sharding.merged_metadata({rank: one[2] for rank, one in enumerate(every)}, shard.what)
            self._wanted = Wanted(step=shard.step, label=shard.label, metadata=words(metadata, shard.step))
            return list(sharding.storing_ranks([one[1] for one in every]))

        return bool(together.made_of_all(bring, decide, FILL_WITHIN_S)[together.group.rank])

    def _left_out(self, stores: bool) -> set[str]:
        """Files that another rank brings too, and stores."""
        together, what, own = self._together, self._shard.what, self._together.group.rank
        found: list[Found] = []

        def listed() -> list[str]:
            found.extend(files_in(self._path) if stores else ())
            return [one.path for one in found]

        def compare(every: list[Any]) -> dict[str, list[int]]:
            count = sum(map(len, every))
            if count > FILES_MAX:
                raise TooLarge(f"{count} files, at most {FILES_MAX}", object=what, next_step="Pack them into fewer.")
            shared = sharding.shared_paths(dict(enumerate(every)), what)
            return {path: list(ranks) for path, ranks in shared.items()}

        shared = together.made_of_all(listed, compare, WORK_WITHIN_S)
        if not shared:
            return set()

        def hashes() -> dict[str, str]:
            mine = [one for one in found if own in shared.get(one.path, ())]
            return {one.path: SHA256_OF_NOTHING if one.is_folder else hash_of(one.place) for one in mine}

        def choose(every: list[Any]) -> list[list[str]]:
            left = sharding.stored_elsewhere(dict(enumerate(every)), what)
            return [sorted(left[rank]) for rank in range(len(every))]

        return set(together.made_of_all(hashes, choose, WORK_WITHIN_S)[own])

    def _begin(self) -> dict[str, str]:
        assert self._wanted is not None
        return dict(msgspec.to_builtins(self._saver.keeper.begin(self._wanted)))

    def _stored(self, begun: Begun, stores: bool, left_out: set[str]) -> Kept:
        keeper = self._saver.keeper

        def bring() -> list[Any]:
            files = keeper.store(self._path, begun, left_out) if stores else ()
            return [[one.path, one.size_bytes, one.sha256] for one in files]

        def commit(every: list[Any]) -> dict[str, Any]:
            assert self._wanted is not None
            files = sharding.joined(CheckpointFile(*one) for part in every for one in part)
            return dict(msgspec.to_builtins(keeper.commit(begun, self._wanted, files)))

        try:
            return msgspec.convert(self._together.made_of_all(bring, commit, WORK_WITHIN_S), Kept)
        except BaseException:
            if self._together.is_chief:
                keeper.abandon(begun)
            raise
