"""Every operation on who may do what, as a value: logins, users, groups, workspaces, tokens, secrets, quotas. Pure."""

from __future__ import annotations

from clutch.sdk.call import Call, get, path, post
from clutch.wire.access import (
    Login,
    MadeToken,
    WhoAmI,
)


def login(login: Login) -> Call[MadeToken]:
    return post(("login",), MadeToken, login)


def logout() -> Call[None]:
    return Call(method="POST", path=path("logout"), repeatable=True)


def who_am_i() -> Call[WhoAmI]:
    return get(("me",), WhoAmI)
