"""Where checkpoints are kept: a bucket is tried before anything is paid for, used, read through the master, emptied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from experiment_ground import Ground

from clutch.sdk import access_calls, experiment_calls
from clutch.testing.cluster import until
from clutch.testing.seaweed import BUCKET, KEY_ID, SECRET, Server, temporary_server
from clutch.wire.access import NewSecret
from clutch.wire.errors import BadRequest, NotFound


@pytest.fixture(scope="module")
def bucket() -> Iterator[Server]:
    with temporary_server() as server:
        yield server


def put_secret(ground: Ground, name: str, value: str) -> None:
    ground.client.perform(access_calls.put_secret("default", NewSecret(name, value)))


def s3(server: Server, secret: str, **more: str) -> dict[str, str]:
    return {"type": "s3", "bucket": BUCKET, "endpoint_url": server.endpoint, "credentials": secret, **more}


def test_checkpoints_in_a_bucket_are_saved_read_and_removed(ground: Ground, bucket: Server) -> None:
    put_secret(ground, "right", f"{KEY_ID}:{SECRET}")
    storage = s3(bucket, "right", prefix="kept")
    experiment = ground.start({"steps": 2, "save": 2}, checkpoint_storage=storage)
    assert ground.until_ended(experiment).state == "completed", ground.story(experiment)
    (row,) = ground.client.perform(experiment_calls.list_checkpoints(experiment)).items
    assert row.storage.startswith("s3://") and SECRET not in row.storage
    detail = ground.client.perform(experiment_calls.get_checkpoint(row.key))
    assert detail.secret == "right"
    assert ground.download(experiment_calls.get_checkpoint_file(row.key, "step")) == b"2"
    ground.client.perform(experiment_calls.move_experiment(experiment, "delete"))

    def gone() -> bool:
        try:
            ground.view(experiment)
        except NotFound:
            return True
        return False

    until(gone, "the experiment to be gone", 60.0)


def test_wrong_credentials_and_buckets_are_found_before_training(ground: Ground, bucket: Server) -> None:
    put_secret(ground, "wrong", f"{KEY_ID}:not-the-secret")
    put_secret(ground, "plain", "no colon in it")
    put_secret(ground, "good", f"{KEY_ID}:{SECRET}")
    before = len(ground.client.perform(experiment_calls.list_experiments(limit=1000)).items)
    for storage, words in (
        (s3(bucket, "wrong"), "cannot be kept there"),
        (s3(bucket, "plain"), "KEY:SECRET"),
        (s3(bucket, "nobody"), "no secret"),
        (s3(bucket, "good") | {"bucket": "no-such-bucket"}, "cannot be kept there"),
    ):
        with pytest.raises(BadRequest, match=words):
            ground.start({}, checkpoint_storage=storage)
    assert len(ground.client.perform(experiment_calls.list_experiments(limit=1000)).items) == before


def test_a_folder_that_only_nodes_see_is_not_refused(ground: Ground, tmp_path: Path) -> None:
    """The master cannot see it; the trial makes it."""
    folder = tmp_path / "later" / "there"
    storage = {"type": "shared_fs", "host_path": str(folder)}
    found = ground.submit(ground.config({"steps": 2, "save": 2}, checkpoint_storage=storage), paused=True)
    folder.mkdir(parents=True)
    ground.client.perform(experiment_calls.move_experiment(found.experiment, "resume"))
    assert ground.until_ended(found.experiment).state == "completed", ground.story(found.experiment)
    (row,) = ground.client.perform(experiment_calls.list_checkpoints(found.experiment)).items
    assert any(row.key in str(path) for path in folder.rglob("*"))
    assert ground.download(experiment_calls.get_checkpoint_file(row.key, "step")) == b"2"
