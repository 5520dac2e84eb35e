"""Checkpoints of a run on the cluster: files go straight to their storage, the master hears what is there.

A checkpoint is begun (which gives its id), uploaded and committed after its folder was filled. While no master answers
this waits, at most ``WITHIN_S``: the work has asked for something durable.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from clutch.runtime.saving import Begun, Kept, Wanted, new_folder
from clutch.wire.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from clutch.runtime.checkpoint import Store
    from clutch.runtime.checkpoint_select import Selector
    from clutch.runtime.collective.restoring import NodeFolder
    from clutch.runtime.info import Info
    from clutch.runtime.trial import Trial
    from clutch.runtime.trial_client import TrialClient
    from clutch.wire.push import CheckpointFile, CheckpointView

T = TypeVar("T")
WITHIN_S = 3600.0
STORAGE_WITHIN_S = 600.0
SAY_AFTER_S = 30.0


class ClusterKeeper:
    def __init__(
        self, info: Info, trial: Trial, open_client: Callable[[], TrialClient], say: Callable[[str], None]
    ) -> None:
        self._info = info
        self._trial = trial
        self._open_client = open_client
        self._say = say
        self._client: TrialClient | None = None
        self._store: Store | None = None
        self._views: dict[str, CheckpointView] = {}
        self._folders: list[Path] = []
        self._nodes: dict[str, NodeFolder] = {}

    def draft(self, step: int) -> Path:
        return new_folder(self._info.tmp, f"clutch-checkpoint-{step}-")

    def keep(self, folder: Path, wanted: Wanted) -> Kept:
        begun = self.begin(wanted)
        return self.commit(begun, wanted, self.store(folder, begun))

    def begin(self, wanted: Wanted) -> Begun:
        client = self._talk()
        found = self._patiently(lambda: client.begin_checkpoint(wanted.step, wanted.label))
        return Begun(id=found.id, place=found.prefix, workspace=found.workspace)

    def store(self, folder: Path, begun: Begun, left_out: Collection[str] = ()) -> tuple[CheckpointFile, ...]:
        store = self._opened(begun.workspace)
        return self._patiently(lambda: store.upload(folder, begun.place, left_out=left_out), STORAGE_WITHIN_S)

    def commit(self, begun: Begun, wanted: Wanted, files: tuple[CheckpointFile, ...]) -> Kept:
        from clutch.wire.push import CommitManifest

        client, store = self._talk(), self._opened(begun.workspace)
        manifest = CommitManifest(
            step=wanted.step, label=wanted.label, storage=store.address, files=files, metadata=wanted.metadata
        )
        view = self._patiently(lambda: client.commit_checkpoint(begun.id, manifest))
        self._views[view.id] = msgspec.structs.replace(view, files=files)
        return _kept(view)

    def abandon(self, begun: Begun) -> None:
        return  # files that nobody commits are swept

    def latest(self) -> str:
        return self._info.checkpoint or self._trial.warm_start

    def look(self, checkpoint: str) -> Kept:
        return _kept(self._view(checkpoint))

    def fetch(self, checkpoint: str, selector: Selector | None = None) -> Path:
        from clutch.runtime.checkpoint_select import selected

        meant = selected(self._view(checkpoint).files, selector)
        if self._info.process_size > 1:
            return self._shared(checkpoint).fetch(meant, lambda files, target: self._get(checkpoint, files, target))
        target = new_folder(self._info.tmp, "clutch-restored-")
        self._folders.append(target)
        self._get(checkpoint, meant, target)
        return target

    def _get(self, checkpoint: str, files: Sequence[CheckpointFile], target: Path) -> None:
        view = self._view(checkpoint)
        workspace = "" if view.storage else self._patiently(self._talk().info).workspace
        store = self._opened(workspace, view.storage)
        prefix = view.prefix or f"checkpoints/{view.id}"
        self._patiently(lambda: store.download(prefix, files, target), STORAGE_WITHIN_S)

    def close(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        for shared in self._nodes.values():
            shared.close()
        if self._client is not None:
            self._client.close()

    # ------------------------------------------------------------------------------------------------------------

    def _talk(self) -> TrialClient:
        if self._client is None:
            self._client = self._open_client()
        return self._client

    def _view(self, checkpoint: str) -> CheckpointView:
        if checkpoint not in self._views:

            def asked() -> CheckpointView:
                return self._patiently(lambda: self._talk().checkpoint(checkpoint))

            alone = self._info.process_size == 1
            self._views[checkpoint] = asked() if alone else self._shared(checkpoint).view(asked)
        return self._views[checkpoint]

    def _shared(self, checkpoint: str) -> NodeFolder:
        """What the ranks of this member have of it in common."""
        if checkpoint not in self._nodes:
            from clutch.runtime.collective.restoring import NodeFolder

            info = self._info
            self._nodes[checkpoint] = NodeFolder(info.tmp, checkpoint, f"{info.task}\0{info.fence}\0{info.token}")
        return self._nodes[checkpoint]

    def _opened(self, workspace: str, address: str | None = None) -> Store:
        """The run's own storage; one that a checkpoint was kept in before counts for that one."""
        from clutch.runtime.checkpoint import Served, Store
        from clutch.wire.experiments import Storage

        storage = msgspec.json.decode(self._trial.storage, type=Storage)
        elsewhere = address is not None and address != storage.address
        if elsewhere:
            storage = Storage(address=address or "", options=storage.options, secret=storage.secret)
        elif self._store is not None:
            return self._store
        info = self._info
        served = Served(masters=info.masters, token=info.token, workspace=workspace, ca_file=info.ca_file)
        way = None
        if not storage.address:
            try:
                way = self._patiently(lambda: self._talk().storage_way())
            except NotFound:
                way = None  # a master that keeps no experiments
        store = Store.open(storage, secret=info.storage_secret, served=served, way=way, here=Path.cwd())
        if not elsewhere:
            self._store = store
        return store

    def _patiently(self, call: Callable[[], T], within_s: float = WITHIN_S) -> T:
        """What the call gives, however long nobody answers, at most so long."""
        begun, said = time.monotonic(), False
        while True:
            try:
                return call()
            except Unavailable as error:
                waited = time.monotonic() - begun
                if waited > within_s:
                    raise
                if waited > SAY_AFTER_S and not said:
                    said = True
                    self._say(f"a checkpoint waits for its master or its storage: {error}")
                time.sleep(min(2.0, 0.2 + waited / 10))


def _kept(view: CheckpointView) -> Kept:
    return Kept(id=view.id, step=view.step, metadata=dict(view.metadata))
