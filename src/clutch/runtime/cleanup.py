"""Removes the files of checkpoints that nobody wants any more: ``python -m clutch.runtime.cleanup``, as a task.

``CLUTCH_CLEANUP`` holds a ``CleanupOrder``. The manifest of each checkpoint says where its files are; what is gone
already is not missed, so the order may be carried out any number of times. Exit code 0: all of it is gone. 1: some of
it is not, and each line on standard error says which and why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from clutch.runtime.checkpoint import FOLDER, Served, Store
from clutch.runtime.http import MasterConnection
from clutch.runtime.info import Info, inherited, read_info
from clutch.runtime.trial_client import TrialClient
from clutch.wire.errors import BadRequest, ClutchError, NotFound, Stale
from clutch.wire.experiment_api import StorageWay
from clutch.wire.experiments import CLEANUP_VARIABLE, CleanupItem, CleanupOrder, Storage
from clutch.wire.push import CheckpointView

OVER = 75
"""Exit code when this incarnation is over: another one does the work, or nobody wants it done."""


class Cleaner:
    """Carries out one order."""

    def __init__(self, order: CleanupOrder, info: Info, say: Callable[[str], None]) -> None:
        self._order = order
        self._info = info
        self._say = say
        self._client = TrialClient(MasterConnection(info.masters, info.token, ca_file=info.ca_file))
        self._stores: dict[str, Store] = {}

    def run(self) -> int:
        """How many checkpoints could not be removed."""
        failed = 0
        for item in self._order.checkpoints:
            try:
                self._remove(item)
            except Stale:
                raise
            except ClutchError as error:
                failed += 1
                self._say(f"checkpoint {item.checkpoint}: {error}")
        return failed

    def close(self) -> None:
        self._client.close()

    def _remove(self, item: CleanupItem) -> None:
        view = self._manifest(item.checkpoint)
        store = self._store(self._order.storage.address if view is None else view.storage)
        prefix = (view.prefix if view is not None else "") or f"{FOLDER}/{item.checkpoint}"
        store.delete(prefix, view.files if view is not None else (), item.globs)

    def _manifest(self, checkpoint: str) -> CheckpointView | None:
        """What was committed; None for what the master does not know, whose files are then found by their prefix."""
        try:
            return self._client.checkpoint(checkpoint)
        except NotFound:
            return None

    def _store(self, address: str) -> Store:
        if address not in self._stores:
            info, storage = self._info, self._order.storage
            if address != storage.address:  # it was kept elsewhere then
                storage = Storage(address=address, secret=storage.secret, options=storage.options)
            served, way = None, None
            if not address:
                workspace = self._client.info().workspace
                served = Served(masters=info.masters, token=info.token, workspace=workspace, ca_file=info.ca_file)
                way = self._way()
            self._stores[address] = Store.open(
                storage, secret=info.storage_secret, served=served, way=way, here=Path.cwd()
            )
        return self._stores[address]

    def _way(self) -> StorageWay | None:
        try:
            return self._client.storage_way()
        except NotFound:
            return None  # a master that keeps no experiments


def read_order(text: str) -> CleanupOrder:
    try:
        return msgspec.json.decode(text, type=CleanupOrder)
    except msgspec.MsgspecError as error:
        raise BadRequest(
            f"it cannot be read: {error}",
            object=CLEANUP_VARIABLE,
            next_step="It is set by the experiment's controller.",
        ) from error


def main() -> int:
    environment = inherited()
    try:
        cleaner = Cleaner(read_order(environment.get(CLEANUP_VARIABLE, "")), read_info(environment), _say)
    except ClutchError as error:
        _say(str(error))
        return 1
    try:
        failed = cleaner.run()
    except Stale as error:
        _say(str(error))
        return OVER
    finally:
        cleaner.close()
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
