"""Checkpoints that members commit: an id to store files under, a manifest that says which, and the list of them.

A commit is two steps. The manifest is stored as *pending*; then the loop decides, fenced, that a later start resumes
from this checkpoint, and when that fact is durable the manifest takes its place in the list. Only then is it
acknowledged. Whoever is killed in between commits again: every step may be repeated. What the loop refused is never
listed. An id is made from who begins it, at which step: beginning again gives the same id and stores nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.keys import check_key
from clutch.master.loop import Loop
from clutch.master.push.standing import Standing
from clutch.wire import events as e
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, NotFound, TooLarge
from clutch.wire.ids import TaskId
from clutch.wire.push import (
    FILES_MAX,
    MANIFEST_MAX_BYTES,
    METADATA_MAX,
    SHA256_OF_NOTHING,
    BeginCheckpoint,
    CheckpointBegun,
    CheckpointView,
    CommitManifest,
)

FOLDER = "push/checkpoints"
LABEL_MAX = 200
WORDS_MAX = 2_000
LISTED_MAX = 1_000
DECIDED_KEPT = 10_000
"""Commits decided lately: one that another has overtaken since is still told that it was."""

Described = Callable[[TaskId, str], Awaitable[dict[str, str] | None]]
DecideGuest = Callable[[Standing, CheckpointView], Awaitable[None]]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CheckpointView)


class Checkpoints:
    """Begin, commit, get, list."""

    def __init__(self, loop: Loop, blobs: FullBlobs, now: Callable[[], float]) -> None:
        self._loop = loop
        self._blobs = blobs
        self._now = now
        self._decided: dict[str, None] = {}
        self.decide_guest: DecideGuest | None = None
        """Makes the commit of somebody who holds nothing of the cluster durable."""
        self.described: Described | None = None
        """What is said of a checkpoint now, if that was changed since its commit."""

    def begin(self, standing: Standing, wanted: BeginCheckpoint) -> CheckpointBegun:
        _check_words(wanted.step, wanted.label)
        made = checkpoint_id(standing, wanted.step, wanted.label)
        return CheckpointBegun(id=made, prefix=prefix_of(made), workspace=standing.task.spec.workspace)

    async def commit(self, standing: Standing, checkpoint: str, manifest: CommitManifest) -> CheckpointView:
        """The checkpoint as it is listed from now on. ``Conflict`` when a later step was committed meanwhile."""
        _check_words(manifest.step, manifest.label)
        if checkpoint != checkpoint_id(standing, manifest.step, manifest.label):
            raise BadRequest(
                f"it was not begun by {standing.member.member} {standing.fence} at step {manifest.step} as "
                f"{manifest.label!r}",
                object=f"checkpoint {checkpoint[:80]}",
                next_step="Begin it first, with the same step and label.",
            )
        check_manifest(checkpoint, manifest)
        task = standing.task.task
        known = await self._find(task, checkpoint)
        if known is not None:
            _check_same(known, manifest)
            return self._marked(known)
        view = self._view(standing, checkpoint, manifest)
        content = _encoder.encode(view)
        if len(content) > MANIFEST_MAX_BYTES:
            raise TooLarge(
                f"its manifest has {len(content)} bytes, at most {MANIFEST_MAX_BYTES} are kept",
                object=f"checkpoint {checkpoint}",
                next_step="Pack many small files into fewer.",
            )
        await self._blobs.put(_pending(task, checkpoint), content)
        await self._decide(standing, view)
        await self._blobs.put(_key(task, checkpoint), content)
        with suppress(ClutchError):  # it is listed; what is left of the first step does no harm
            await self._blobs.delete(_pending(task, checkpoint))
        return self._marked(view)

    async def _decide(self, standing: Standing, view: CheckpointView) -> None:
        if standing.is_guest and self.decide_guest is not None:
            await self.decide_guest(standing, view)
            return
        member = standing.member.member
        event = e.CommitCheckpoint(
            cause=f"task:{member}",
            task=member.task,
            member=member,
            fence=standing.fence,
            checkpoint=view.id,
            step=view.step,
            size_bytes=view.size_bytes,
            storage=view.storage,
        )
        await self._loop.ask(event)
        last = self._loop.state.tasks.get(member.task)
        if view.id not in self._decided and (last is None or last.checkpoint != view.id):
            raise Conflict(
                f"step {view.step} is behind the last committed one",
                object=f"checkpoint {view.id}",
                next_step="Commit checkpoints in the order of their steps.",
            )

    def heard(self, checkpoint: str) -> None:
        """The loop has decided this one, and that is durable."""
        self._decided[checkpoint] = None
        if len(self._decided) > DECIDED_KEPT:
            del self._decided[next(iter(self._decided))]

    async def get(self, task: TaskId, checkpoint: str) -> CheckpointView:
        return await self._as_described(await self.manifest(task, checkpoint))

    async def _as_described(self, view: CheckpointView) -> CheckpointView:
        said = await self.described(TaskId(view.task), view.id) if self.described is not None else None
        return view if said is None else msgspec.structs.replace(view, metadata=said)

    async def manifest(self, task: TaskId, checkpoint: str) -> CheckpointView:
        """As it was committed."""
        found = await self._find(task, checkpoint)
        if found is None:
            raise NotFound("no such checkpoint was committed", object=f"checkpoint {checkpoint[:80]}")
        return self._marked(found)

    async def forget(self, task: TaskId) -> None:
        """Remove the record of every checkpoint of a task; their files are somebody else's to remove."""
        keys = [listed.key async for page in self._blobs.list(f"{FOLDER}/{task}") for listed in page]
        for key in keys:
            await self._blobs.delete(key)

    async def of_task(self, task: TaskId) -> tuple[CheckpointView, ...]:
        """All committed ones, without their files, by step; at most the ``LISTED_MAX`` youngest."""
        keys = [listed async for page in self._blobs.list(f"{FOLDER}/{task}/committed") for listed in page]
        keys.sort(key=lambda listed: listed.modified_at)
        found: dict[str, CheckpointView] = {}
        for listed in keys[-LISTED_MAX:]:
            view = await self._read(listed.key)
            if view is not None:
                found[view.id] = view
        last = self._loop.state.tasks.get(task)
        if last is not None and last.checkpoint and last.checkpoint not in found:
            view = await self._find(task, last.checkpoint)
            if view is not None:
                found[view.id] = view
        plain = [
            await self._as_described(msgspec.structs.replace(self._marked(view), files=())) for view in found.values()
        ]
        return tuple(sorted(plain, key=lambda view: (view.step, view.committed_at)))

    async def _find(self, task: TaskId, checkpoint: str) -> CheckpointView | None:
        """A committed checkpoint. Its master may have ended between the decision and the list: then it is pending."""
        check_key(_key(task, checkpoint))
        view = await self._read(_key(task, checkpoint))
        last = self._loop.state.tasks.get(task)
        if view is None and last is not None and last.checkpoint == checkpoint:
            view = await self._read(_pending(task, checkpoint))
            if view is not None:
                await self._blobs.put(_key(task, checkpoint), _encoder.encode(view))
        return view

    async def _read(self, key: str) -> CheckpointView | None:
        try:
            return _decoder.decode(await self._blobs.get(key))
        except NotFound:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"a stored manifest does not decode: {error}", object=f"blob {key}") from error

    def _view(self, standing: Standing, checkpoint: str, manifest: CommitManifest) -> CheckpointView:
        return CheckpointView(
            id=checkpoint,
            task=standing.task.task,
            step=manifest.step,
            epoch=standing.allocation.epoch,
            member=str(standing.member.member),
            committed_at=self._now(),
            size_bytes=sum(file.size_bytes for file in manifest.files),
            file_count=sum(not file.is_folder for file in manifest.files),
            storage=manifest.storage,
            prefix=prefix_of(checkpoint),
            metadata=manifest.metadata,
            files=manifest.files,
        )

    def _marked(self, view: CheckpointView) -> CheckpointView:
        task = self._loop.state.tasks.get(TaskId(view.task))
        return msgspec.structs.replace(view, latest=task is not None and task.checkpoint == view.id)


def checkpoint_id(standing: Standing, step: int, label: str) -> str:
    """Unique over a cluster's life: fences never repeat, and of one incarnation step and label tell them apart."""
    member = standing.member.member
    said = f"{member}\0{standing.fence}\0{step}\0{label}"
    return f"{step}-{hashlib.sha256(said.encode()).hexdigest()[:20]}"


def prefix_of(checkpoint: str) -> str:
    return f"checkpoints/{checkpoint}"


def check_manifest(checkpoint: str, manifest: CommitManifest) -> None:
    subject = f"checkpoint {checkpoint}"
    if len(manifest.files) > FILES_MAX:
        raise TooLarge(f"{len(manifest.files)} files, at most {FILES_MAX}", object=subject, path="files")
    seen: set[str] = set()
    for number, file in enumerate(manifest.files):
        path = f"files[{number}]"
        plain = file.path.removesuffix("/")
        try:
            check_key(plain)
        except BadRequest as error:
            raise BadRequest(error.cause, object=subject, path=f"{path}.path", next_step=error.next_step) from error
        if plain in seen:
            raise BadRequest("a file is named twice", object=subject, path=f"{path}.path")
        seen.add(plain)
        if file.is_folder and (file.size_bytes, file.sha256) != (0, SHA256_OF_NOTHING):
            raise BadRequest(
                "a path that ends with '/' is an empty folder, and this one has content",
                object=subject,
                path=path,
                next_step="Name the file without the '/'.",
            )
        if not 0 <= file.size_bytes < 2**60:
            raise BadRequest(f"a size of {file.size_bytes} bytes", object=subject, path=f"{path}.size_bytes")
        if len(file.sha256) != 64 or not set(file.sha256) <= set("0123456789abcdef"):
            raise BadRequest(
                "this is no SHA-256", object=subject, path=f"{path}.sha256", next_step="Give 64 hex digits."
            )
    if len(manifest.metadata) > METADATA_MAX or len(manifest.storage) > WORDS_MAX:
        raise TooLarge("its metadata or address is too long", object=subject, path="metadata")
    check_metadata(subject, manifest.metadata)
    check_metadata(subject, {"storage": manifest.storage})


def check_metadata(subject: str, metadata: Mapping[str, str]) -> None:
    for name, value in metadata.items():
        if len(name) > LABEL_MAX or len(value) > WORDS_MAX or _unspeakable(name + value):
            raise BadRequest(f"metadata {name[:80]!a} is too long or no text", object=subject, path="metadata")


def _check_words(step: int, label: str) -> None:
    if not 0 <= step < 2**53:
        raise BadRequest(f"there is no step {step}", object="checkpoint", path="step", next_step="Give 0 or more.")
    if len(label) > LABEL_MAX or _unspeakable(label):
        raise BadRequest("the label is too long or no text", object="checkpoint", path="label")


def _unspeakable(text: str) -> bool:
    """Whether some store would choke on it: a NUL, or half of a surrogate pair."""
    return "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)


def _check_same(known: CheckpointView, manifest: CommitManifest) -> None:
    if known.files != manifest.files:
        raise Conflict(
            "it was committed with other files",
            object=f"checkpoint {known.id}",
            next_step="Begin another one, with a label of its own.",
        )


def _key(task: str, checkpoint: str) -> str:
    return f"{FOLDER}/{task}/committed/{checkpoint}"


def _pending(task: str, checkpoint: str) -> str:
    return f"{FOLDER}/{task}/pending/{checkpoint}"
