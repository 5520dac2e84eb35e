"""Members run as their submitters where the pool says so."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from clutch.sdk import access_calls, calls
from clutch.sdk.client import Client
from clutch.testing.cluster import Cluster
from clutch.wire.access import Login, NewUser, Role, RoleGrant
from clutch.wire.ids import PoolName
from clutch.wire.specs import PoolSpec

PASSWORD = "a long password"
UID, GID = 61234, 61235


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_member_is_its_submitter_or_nobody() -> None:
    # pytest keeps its folders to itself; ada must get through to her own
    with tempfile.TemporaryDirectory(prefix="clutch-users-") as name, Cluster(Path(name)) as cluster:
        Path(name).chmod(0o755)
        admin = cluster.start()
        cluster.add_agent("one")
        cluster.wait_nodes("one")
        admin.perform(calls.put_pool(PoolSpec(name=PoolName("default"), run_as_users=True)))
        for user in (NewUser("ada", PASSWORD, uid=UID, gid=GID), NewUser("bob", PASSWORD)):
            admin.perform(access_calls.create_user(user))
            scope = "workspace:default"
            admin.perform(access_calls.grant_role(RoleGrant(f"user:{user.name}", Role.EDITOR, scope)))
        with Client(cluster.urls, _token(cluster, "ada")) as ada:
            task = ada.run("sh", "-c", "id -u; id -g; touch mine && stat -c %u mine", code=None)
            assert task.wait(60).exit_code == 0
            assert [line.text for line in task.output()] == [str(UID), str(GID), str(UID)]
        with Client(cluster.urls, _token(cluster, "bob")) as bob:
            detail = bob.run("id", code=None).wait(60)
            assert detail.task.reason == "failed"
            assert "bob" in detail.task.detail and "uid" in detail.task.detail


def _token(cluster: Cluster, user: str) -> str:
    with Client(cluster.urls, "") as nobody:
        return nobody.perform(access_calls.log_in(Login(user=user, password=PASSWORD))).token
