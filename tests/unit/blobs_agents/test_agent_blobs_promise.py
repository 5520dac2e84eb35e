"""What a master says about blobs on its agents' disks, and who may name them."""

from pathlib import Path

from clutch.backends.blobs.opening import open_blobs
from clutch.master.promises import promises
from clutch.master.settings import MasterSettings
from clutch.testing.blobs_ground import refused
from clutch.wire.errors import BadRequest


def test_p1_says_how_many_copies_there_are(tmp_path: Path) -> None:
    settings = MasterSettings(data=tmp_path, db="postgresql://elsewhere", blobs="agents:")
    assert "agents' disks (2 copies of each)" in promises(settings, 2)["P1"]
    assert "one copy of some now" in promises(settings, 1)["P1"]
    assert "some out of reach now" in promises(settings, 0)["P1"]


async def test_only_a_master_keeps_blobs_on_agents() -> None:
    error = await refused(BadRequest, open_blobs("agents:"))
    assert "served:" in error.next_step
