"""Where the cluster is: what was said, the environment, the login, the ``clutch up`` of this machine."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from clutch.sdk.where import Endpoint, Given, Where, data_folder, find, forget_profile, read_profile, write_profile
from clutch.wire.errors import BadRequest, NotAuthenticated, NotFound


def home(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder)}


def up(environment: dict[str, str], url: str = "http://127.0.0.1:8620", token: str = "up-token") -> None:
    folder = data_folder(environment)
    folder.mkdir(parents=True)
    (folder / "token").write_text(f"{token}\n")
    (folder / "endpoint.json").write_bytes(msgspec.json.encode(Endpoint(url, str(folder / "token"))))


def test_nothing_known_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"clutch up.*clutch login"):
        find(home(tmp_path))


def test_each_place_outranks_the_next(tmp_path: Path) -> None:
    env = home(tmp_path)
    up(env)
    assert (find(env).masters, find(env).token) == (("http://127.0.0.1:8620",), "up-token")
    write_profile(env, Where(masters=("https://a:1", "https://b:2"), token="login-token", user="ann"))
    assert (find(env).masters, find(env).token, find(env).user) == (
        ("https://a:1", "https://b:2"),
        "login-token",
        "ann",
    )
    env |= {"CLUTCH_MASTER": "http://c:3,http://d:4", "CLUTCH_TOKEN": "env-token"}
    assert (find(env).masters, find(env).token) == (("http://c:3", "http://d:4"), "env-token")
    said = find(env, Given("http://e:5", "said-token", "/ca.pem"))
    assert (said.masters, said.token, said.ca_file, said.source) == (
        ("http://e:5",),
        "said-token",
        "/ca.pem",
        "--master",
    )


def test_a_token_is_sent_only_to_the_cluster_it_is_for(tmp_path: Path) -> None:
    env = home(tmp_path)
    write_profile(env, Where(masters=("https://a:1", "https://b:2"), token="secret"))
    assert find(env, Given("https://b:2/")).token == "secret"
    assert find(env, Given("https://evil:1")).token == ""
    assert find(env, Given("https://a:1,https://evil:1")).token == ""


def test_a_login_is_its_users_alone_and_can_be_forgotten(tmp_path: Path) -> None:
    env = home(tmp_path)
    path = write_profile(env, Where(masters=("http://a:1",), token="t"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    write_profile(env, Where(masters=("http://a:1",), token="u"))
    kept = read_profile(env)
    assert kept is not None
    assert kept.token == "u"
    assert forget_profile(env)
    assert not forget_profile(env)


def test_folders_follow_the_conventions_of_the_desktop(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_DATA_HOME": str(tmp_path / "d")}
    up(env)
    assert find(env).source == str(tmp_path / "d" / "clutch" / "endpoint.json")
    assert write_profile(env, Where(masters=("x",))) == tmp_path / "c" / "clutch" / "profile.json"


def test_damage_is_named(tmp_path: Path) -> None:
    env = home(tmp_path)
    up(env)
    (data_folder(env) / "token").unlink()
    with pytest.raises(NotAuthenticated, match="token"):
        find(env)
    path = write_profile(env, Where(masters=("x",)))
    path.write_text("{")
    with pytest.raises(BadRequest, match=r"profile\.json"):
        find(env)
