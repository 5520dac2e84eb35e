"""A real cluster of processes: a secret reaches its program and nothing else, and ``kill -9`` loses no right."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.sdk import access_calls, calls
from clutch.sdk.client import Client
from clutch.testing.cluster import Cluster, until
from clutch.wire.access import NewSecret, NewToken, NewUser, Role, RoleGrant, TokenKind
from clutch.wire.api import SubmitTask
from clutch.wire.errors import ClutchError
from clutch.wire.programs import Program, SecretUse
from clutch.wire.resources import ARTIFICIAL, Resources

PLAIN = "hunter2-Zq8vXw31-over-the-wire"
SCRIPT = """
test "$KEY" = hunter2-Zq8vXw31-over-"the-wire" || exit 7
test -n "$CLUTCH_TOKEN" || exit 8
printf %s "$CLUTCH_TOKEN" > "$0.new" && mv "$0.new" "$0"
while test -e "$0"; do sleep 0.05; done
"""
"""Compares without spelling the value out, and lends the test its token until the file is taken away."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as made:
        made.start()
        made.add_agent("n1", slots=2)
        made.wait_nodes("n1")
        yield made


def _client(cluster: Cluster, token: str) -> Client:
    return Client(cluster.urls, token, patience_s=20.0)


def test_a_secret_reaches_its_program_and_rights_survive_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    admin = cluster.client
    admin.perform(access_calls.create_user(NewUser("ada")))
    admin.perform(access_calls.grant_role(RoleGrant("user:ada", Role.EDITOR, "workspace:default")))
    personal = admin.perform(access_calls.make_token(NewToken("ada's", TokenKind.PERSONAL, user="ada"))).token
    ended = admin.perform(access_calls.make_token(NewToken("ended", TokenKind.PERSONAL, user="ada")))
    admin.perform(access_calls.revoke_token(ended.view.id))
    lent = tmp_path / "lent"
    with _client(cluster, personal) as ada:
        ada.perform(access_calls.put_secret("default", NewSecret("key", PLAIN)))
        program = Program(argv=("sh", "-c", SCRIPT, str(lent)), secrets=(SecretUse("key", "KEY"),))
        wish = SubmitTask(program=program, name="t", resources=Resources(slots=2, kind=ARTIFICIAL))
        task = ada.perform(calls.submit(wish)).task
        until(lent.exists, "the member's token")
    member = lent.read_text()

    cluster.masters[0].kill()
    cluster.masters[0].start()
    cluster.wait_serving()

    with _client(cluster, personal) as ada, _client(cluster, member) as inside:
        assert ada.perform(access_calls.who_am_i()).roles == {"workspace:default": Role.EDITOR}
        assert _refusal(inside) == "not_allowed", "the member's token is known to the new master"
        with _client(cluster, ended.token) as nobody:
            assert _refusal(nobody) == "not_authenticated"
        lent.unlink()
        until(lambda: cluster.state(task) == "ended", "the task's end")
        assert cluster.client.perform(calls.get_task(task)).exit_code == 0, "7: the secret was wrong; 8: no token"
        until(lambda: _refusal(inside) == "not_authenticated", "the end of the member's token")

    def accounted() -> bool:
        rows = cluster.client.perform(access_calls.list_usage()).items
        return [(row.user, row.pool, row.tasks) for row in rows] == [("ada", "default", 1)] and bool(
            rows[0].slot_seconds_held > 0
        )

    until(accounted, "its usage, counted once over the kill")
    actions = [entry.action for entry in cluster.client.perform(access_calls.list_audit(who="user:ada")).items]
    assert "put_secret" in actions and "submit_task" in actions
    cluster.masters[0].stop()
    for path in sorted(cluster.folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found = path.read_bytes()
            assert PLAIN.encode() not in found, path
            assert member.encode() not in found, path
            assert not re.search(rb"clutch_p_[\w-]{43}", found) or path.name == "local.token", path


def _refusal(client: Client) -> str:
    """The code with which asking who one is was refused; empty when it was not."""
    try:
        client.perform(access_calls.who_am_i())
    except ClutchError as error:
        return error.code
    return ""
