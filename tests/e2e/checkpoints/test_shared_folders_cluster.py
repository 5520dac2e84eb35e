"""Trials that run as their submitters keep their checkpoints in one folder, or hear before training why they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import clutch
from clutch.sdk import access_calls, calls, experiment_calls
from clutch.sdk.client import Client
from clutch.testing.cluster import Cluster, until
from clutch.wire.access import Login, NewUser, Role, RoleGrant
from clutch.wire.errors import BadRequest
from clutch.wire.experiment_api import SubmitExperiment
from clutch.wire.ids import PoolName
from clutch.wire.output import OutputQuery
from clutch.wire.specs import PoolSpec

PASSWORD = "a long password"
UIDS = {"ada": 61234, "eve": 61236}
TRIAL = Path(__file__).parents[1] / "experiment" / "experiment_trial.py"
ENDED = ("completed", "cancelled", "failed")


@contextmanager
def interpreter(folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which other users find this very Python, wherever its own folder is closed to them."""
    place = folder / "python"
    place.mkdir()
    # read-only in two steps: whoever tidies the folder while it is mounted must not remove the interpreter
    subprocess.run(["mount", "--bind", sys.base_prefix, place], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    assert os.statvfs(place).f_flag & os.ST_RDONLY
    try:
        found = [path for path in sys.path if path.endswith("site-packages")]
        source = str(Path(clutch.__file__).parents[1])
        yield {"PATH": f"{place}/bin:/usr/bin:/bin", "PYTHONPATH": ":".join((source, *found)), "PYTHONHOME": str(place)}
    finally:
        subprocess.run(["umount", "-l", place], check=True)


class House:
    """A cluster that runs members as their submitters."""

    def __init__(self, cluster: Cluster, variables: dict[str, str]) -> None:
        self._cluster = cluster
        self._variables = variables

    def client(self, user: str) -> Client:
        with Client(self._cluster.urls, "") as nobody:
            token = nobody.perform(access_calls.log_in(Login(user=user, password=PASSWORD))).token
        return Client(self._cluster.urls, token)

    def start(self, client: Client, folder: Path, *, paused: bool = False) -> str:
        config: dict[str, Any] = {
            "name": "test",
            "entrypoint": ["python3", str(TRIAL)],
            "environment": {"environment_variables": [f"{name}={value}" for name, value in self._variables.items()]},
            "hyperparameters": {"base": 1.0, "steps": 1, "save": 1},
            "searcher": {"name": "single", "metric": "loss"},
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(folder)},
            "max_restarts": 0,
        }
        wish = SubmitExperiment(config=config, paused=paused)
        return client.perform(experiment_calls.submit_experiment(wish)).experiment

    def ended(self, client: Client, experiment: str) -> tuple[str, str]:
        """How it ended, and what its trial printed."""

        def look() -> str:
            state = client.perform(experiment_calls.get_experiment(experiment)).view.state
            return state if state in ENDED else ""

        state = until(look, f"{experiment} to end", 60.0)
        page = client.perform(calls.read_output(OutputQuery(task=f"{experiment}.1")))
        return state, "\n".join(line.text for line in page.lines)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Where other users get to: pytest closes its own folders again whenever it starts somewhere."""
    with tempfile.TemporaryDirectory(prefix="clutch-shared-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with open_folder() as folder, interpreter(folder) as variables, Cluster(folder / "cluster") as cluster:
        admin = cluster.start()
        cluster.add_agent("one", 2)
        cluster.wait_nodes("one")
        admin.perform(calls.put_pool(PoolSpec(name=PoolName("default"), run_as_users=True)))
        for name, uid in UIDS.items():
            admin.perform(access_calls.create_user(NewUser(name, PASSWORD, uid=uid, gid=uid)))
            admin.perform(access_calls.grant_role(RoleGrant(f"user:{name}", Role.EDITOR, "workspace:default")))
        yield House(cluster, variables)


@pytest.fixture
def kept() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder / "kept"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_users_keep_checkpoints_in_one_folder(house: House, kept: Path) -> None:
    kept.mkdir()
    kept.chmod(0o1777)
    for user, uid in UIDS.items():
        with house.client(user) as client:
            experiment = house.start(client, kept)
            state, said = house.ended(client, experiment)
            assert state == "completed", said
            (row,) = client.perform(experiment_calls.list_checkpoints(experiment)).items
            file = kept / "checkpoints" / row.key / "step"
            assert (file.read_text(), file.stat().st_uid, file.parent.stat().st_uid) == ("1", uid, uid)
            client.checkpoint(row.key).download(kept.parent / user, through_master=True)
            assert (kept.parent / user / "step").read_text() == "1"
            client.perform(experiment_calls.move_experiment(experiment, "delete"))
            until(lambda file=file: not file.parent.exists(), "its files to be gone", 60.0)


@needs_root
def test_a_folder_that_refuses_its_user_is_refused(house: House, kept: Path) -> None:
    kept.mkdir(mode=0o755)
    with house.client("ada") as ada:
        with pytest.raises(BadRequest, match=r"uid 61234, which may not write in .*kept") as refused:
            house.start(ada, kept)
        assert "clutch checkpoint share" in refused.value.next_step
        assert list(kept.iterdir()) == [], "the master made nothing there"
        os.chown(kept, UIDS["ada"], UIDS["ada"])
        state, said = house.ended(ada, house.start(ada, kept))
        assert state == "completed", said


@needs_root
def test_a_folder_that_only_nodes_see_refuses_before_training(house: House, kept: Path) -> None:
    with house.client("eve") as eve:
        experiment = house.start(eve, kept, paused=True)
        kept.mkdir(mode=0o755)
        eve.perform(experiment_calls.move_experiment(experiment, "resume"))
        state, said = house.ended(eve, experiment)
        assert state == "failed"
        assert "begins at" not in said, "it has trained"
        assert "belongs to uid 0" in said and "this is uid 61236" in said
