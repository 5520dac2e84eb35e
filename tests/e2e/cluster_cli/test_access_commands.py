"""People, places and rights from the command line, against a real cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from terminal import User

from clutch.testing.cluster import Cluster


def rows(user: User, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(user.says(*words, "--json"))
    return found


def test_somebody_new_logs_in_works_and_logs_out(admin: User, cluster: Cluster, tmp_path: Path) -> None:
    admin.run("user", "create", "ann", "--display-name", "Ann", input=b"correct horse battery\n")
    admin.run("workspace", "create", "lab", "--description", "ours")
    admin.run("project", "create", "rockets", "--workspace", "lab")
    admin.run("role", "grant", "ann", "editor", "--over", "lab")
    ann = User(tmp_path / "ann")
    bad = ann.run("login", cluster.urls[0], "--user", "ann", "--password-stdin", input=b"wrong\n", code=2)
    assert bad.stderr.startswith(b"clutch:")
    ann.run("login", cluster.urls[0], "--user", "ann", "--password-stdin", input=b"correct horse battery\n")
    assert "user ann" in ann.says("whoami")
    assert json.loads(ann.says("whoami", "--json"))["roles"] == {"workspace:lab": "editor"}
    out = ann.run("run", "--no-code", "--workspace", "lab", "--project", "rockets", "--", "echo", "mine")
    assert out.stdout == b"mine\n"
    assert b"workspace default" in ann.run("run", "--no-code", "--", "true", code=2).stderr
    assert [row["owner"] for row in rows(ann, "ps", "--all")] == ["ann"]
    assert b"cluster" in ann.run("user", "create", "eve", "--no-password", code=2).stderr
    assert "Logged out" in ann.says("logout")
    assert b"clutch login" in ann.run("ps", code=2).stderr
    assert "There was no login" in ann.says("logout")


def test_a_one_time_token_logs_in_once(admin: User, cluster: Cluster, tmp_path: Path) -> None:
    token = admin.says("token", "create", "--kind", "one_time").strip()
    first, second = User(tmp_path / "first"), User(tmp_path / "second")
    first.run("login", cluster.urls[0], "--one-time-token", token)
    assert "user admin" in first.says("whoami")
    second.run("login", cluster.urls[0], "--one-time-token", token, code=2)


def test_people_and_places(admin: User) -> None:
    admin.run("user", "create", "bob", "--no-password")
    admin.run("user", "change", "bob", "--display-name", "Bob", "--uid", "1234", "--gid", "1234")
    bob = next(row for row in rows(admin, "user", "list") if row["name"] == "bob")
    assert (bob["display_name"], bob["uid"]) == ("Bob", 1234)
    admin.run("user", "password", "bob", input=b"a long enough password\n")
    admin.run("group", "create", "crew", "bob")
    admin.run("group", "remove", "crew", "bob")
    admin.run("group", "add", "crew", "bob")
    assert rows(admin, "group", "list")[0]["members"] == ["bob"]
    admin.run("role", "grant", "group:crew", "viewer")
    found = rows(admin, "role", "list", "--who", "group:crew")
    assert [(row["role"], row["scope"]) for row in found] == [("viewer", "workspace:default")]
    assert b"no role 'king'" in admin.run("role", "grant", "bob", "king", code=2).stderr
    admin.run("role", "take", "group:crew")
    assert rows(admin, "role", "list", "--who", "group:crew") == []
    admin.run("group", "delete", "crew")
    admin.run("workspace", "create", "attic")
    admin.run("workspace", "archive", "attic")
    assert next(row for row in rows(admin, "workspace", "list") if row["name"] == "attic")["archived"]
    admin.run("workspace", "archive", "attic", "--undo")
    admin.run("project", "create", "p", "--workspace", "attic")
    admin.run("project", "archive", "p", "--workspace", "attic")
    assert rows(admin, "project", "list", "--workspace", "attic")[0]["archived"]
    admin.run("user", "change", "bob", "--inactive")


def test_secrets_reach_tasks_and_nothing_else(admin: User, cluster: Cluster) -> None:
    admin.run("secret", "put", "api-key", input=b"s3cr3t-value\n")
    assert [row["name"] for row in rows(admin, "secret", "list")] == ["api-key"]
    out = admin.run("run", "--no-code", "--name", "keyed", "--secret", "api-key", "--secret", "api-key=OTHER", "--",
                    "sh", "-c", "test \"$API_KEY\" = \"$OTHER\" && printf %s \"$API_KEY\" | wc -c")  # fmt: skip
    assert out.stdout.strip() == b"12"
    told = (
        admin.says("show", "keyed") + admin.says("why", "keyed") + admin.says("events") + admin.says("secret", "list")
    )
    assert "s3cr3t-value" not in told
    assert "api-key as API_KEY" in admin.says("show", "keyed")
    admin.run("secret", "delete", "api-key")
    assert rows(admin, "secret", "list") == []


def test_tokens_with_limits(admin: User, cluster: Cluster, tmp_path: Path) -> None:
    token = admin.says("token", "create", "for a dashboard", "--role", "viewer", "--days", "1").strip()
    reader = User(tmp_path / "reader", cluster.urls, token)
    reader.run("ps")
    assert b"viewer" in reader.run("run", "--no-code", "--", "true", code=2).stderr
    made = next(row for row in rows(admin, "token", "list") if row["description"] == "for a dashboard")
    admin.run("token", "revoke", made["id"])
    reader.run("ps", code=2)
    assert b"Invalid enum value" in admin.run("token", "create", "--kind", "royal", code=2).stderr


def test_quotas_audit_and_usage(admin: User) -> None:
    admin.run("quota", "set", "workspace:default", "5")
    assert rows(admin, "quota", "list") == [{"scope": "workspace:default", "slots": 5}]
    admin.run("quota", "remove", "workspace:default")
    assert rows(admin, "quota", "list") == []
    admin.run("run", "--no-code", "--slots", "1", "--kind", "artificial", "--", "true")
    entries = rows(admin, "audit", "--action", "submit_task", "--since", "1h")
    assert entries[0]["who"] == "user:admin"
    assert "submit_task" in admin.says("audit")
    assert isinstance(rows(admin, "usage", "--by", "user"), list)
