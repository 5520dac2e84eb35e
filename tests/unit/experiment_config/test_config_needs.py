"""Which paths of a node must be readable before a trial starts."""

from __future__ import annotations

import pytest

from clutch.wire.containers import Mount
from clutch.workloads.experiment.config.door import needed_paths

MOUNTS = (Mount("/srv/images/", "/data", True), Mount("/scratch", "/tmp/x", False))


@pytest.mark.parametrize(
    ("data", "in_image", "needed"),
    [
        ({}, False, ()),
        ({"path": "/data/train"}, False, ("/data/train",)),
        ({"path": "/a", "paths": ["/b", "/a", 3, "relative", "s3://x"]}, False, ("/a", "/b")),
        ({"paths": "not a list"}, False, ()),
        ({"path": "/data"}, True, ("/srv/images",)),
        ({"path": "/data/train/1"}, True, ("/srv/images/train/1",)),
        ({"path": "/database"}, True, ()),
        ({"path": "/opt/in-the-image"}, True, ()),
    ],
)
def test_what_a_node_must_have(data: dict[str, object], in_image: bool, needed: tuple[str, ...]) -> None:
    assert needed_paths(data, MOUNTS, in_image=in_image) == needed
