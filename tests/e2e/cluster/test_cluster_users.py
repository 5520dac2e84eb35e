"""Members run as their submitters where the pool says so."""

from __future__ import annotations

import os
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
def test_a_member_is_its_submitter_or_nobody(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):  # pytest keeps them to itself; ada must get through to her own
        if folder.stat().st_mode & 0o077 == 0:
            folder.chmod(0o755)
    with Cluster(tmp_path) as cluster:
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
