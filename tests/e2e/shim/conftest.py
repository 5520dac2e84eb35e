import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from shim_ground import ShimGround

from clutch.backends.containers.cgroups import Cgroups


@pytest.fixture(params=["cgroups", "plain"])
async def either_ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ShimGround]:
    """With control groups where the machine allows them, and without."""
    ground = ShimGround(tmp_path, Cgroups.detect() if request.param == "cgroups" else Cgroups.none())
    yield ground
    await ground.close()
    shutil.rmtree(tmp_path)


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[ShimGround]:
    ground = ShimGround(tmp_path)
    yield ground
    await ground.close()
    shutil.rmtree(tmp_path)
