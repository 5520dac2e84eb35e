"""Who may do what, apart from any store: roles, scopes, ceilings. A token never can more than its user."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.master.access.caller import Caller
from clutch.master.access.rules import (
    check_id,
    check_lifetime,
    check_name,
    check_text,
    narrowed,
    roles_of,
    subject_of,
    workspace_of,
)
from clutch.wire.access import CLUSTER, RANKS, CallerKind, Needs, Role, RoleGrant
from clutch.wire.errors import BadRequest, NotAllowed, NotFound

PLACES = ("default", "vision", "lab")
SCOPES = (CLUSTER, *(f"workspace:{place}" for place in PLACES))
roles = st.sampled_from(Role)
held = st.dictionaries(st.sampled_from(SCOPES), roles)
limits = st.tuples(st.none() | roles, st.sampled_from(("", *PLACES)))


def rank(role: Role | None) -> int:
    return 0 if role is None else RANKS[role]


def user(roles: dict[str, Role], limits: tuple[Role | None, str] = (None, "")) -> Caller:
    return Caller(CallerKind.USER, "ada", roles, limits=limits)


@given(held, limits)
def test_a_token_never_can_more_than_its_user(roles: dict[str, Role], limits: tuple[Role | None, str]) -> None:
    whole, token = user(roles), user(roles, limits)
    ceiling, only = limits
    for place in PLACES:
        assert rank(token.role_in(place)) <= rank(whole.role_in(place))
        assert ceiling is None or rank(token.role_in(place)) <= rank(ceiling)
        assert not only or place == only or token.role_in(place) is None
    assert rank(token.cluster_role()) <= rank(whole.cluster_role())
    assert not only or token.cluster_role() is None
    for scope, role in token.effective_roles().items():
        assert rank(role) <= rank(whole.cluster_role() if scope == CLUSTER else whole.role_in(scope.partition(":")[2]))


@given(held, limits, limits)
def test_a_token_made_with_another_never_can_more_than_that(
    roles: dict[str, Role], maker: tuple[Role | None, str], asked: tuple[Role | None, str]
) -> None:
    try:
        made = user(roles, narrowed(asked, maker))
    except BadRequest:
        assert maker[1] and asked[1] not in ("", maker[1])
        return
    parent = user(roles, maker)
    for place in PLACES:
        assert rank(made.role_in(place)) <= rank(parent.role_in(place))
        assert asked[0] is None or rank(made.role_in(place)) <= rank(asked[0])
    assert rank(made.cluster_role()) <= rank(parent.cluster_role())


@given(held, limits)
def test_what_one_sees_is_what_one_has_a_role_in(roles: dict[str, Role], limits: tuple[Role | None, str]) -> None:
    token = user(roles, limits)
    seen = token.workspaces()
    for place in PLACES:
        assert (seen is None or place in seen) == (token.role_in(place) is not None)


@given(held, limits, roles, st.sampled_from(PLACES))
def test_a_foreign_thing_does_not_exist_and_a_low_role_is_not_enough(
    roles: dict[str, Role], limits: tuple[Role | None, str], needed: Role, place: str
) -> None:
    token = user(roles, limits)
    token.needs = Needs(needed)
    has = token.role_in(place)
    if has is None:
        with pytest.raises(NotFound):
            token.require(place, "task t")
    elif rank(has) < rank(needed):
        with pytest.raises(NotAllowed):
            token.require(place, "task t")
    else:
        token.require(place, "task t")
    assert token.checked


@given(st.lists(st.tuples(roles, st.sampled_from(SCOPES))))
def test_of_several_grants_the_highest_counts(grants: list[tuple[Role, str]]) -> None:
    found = roles_of(RoleGrant(f"group:g{n}", role, scope) for n, (role, scope) in enumerate(grants))
    for scope in SCOPES:
        assert rank(found.get(scope)) == max((RANKS[role] for role, where in grants if where == scope), default=0)


def test_the_role_over_the_cluster_is_asked_apart() -> None:
    user({CLUSTER: Role.ADMIN}).require_cluster("x")
    user({CLUSTER: Role.VIEWER}).require_cluster("x", Role.VIEWER)
    for caller in (user({}), user({CLUSTER: Role.EDITOR}), user({CLUSTER: Role.ADMIN}, (Role.EDITOR, ""))):
        with pytest.raises(NotAllowed):
            caller.require_cluster("x")


@pytest.mark.parametrize("scope", ["", "cluster:", "workspace:", "workspace:a b", "Cluster", "workspace:a\x00", "x:y"])
def test_what_is_no_scope(scope: str) -> None:
    with pytest.raises(BadRequest):
        workspace_of(scope)
    assert workspace_of(CLUSTER) is None and workspace_of("workspace:lab") == "lab"


@pytest.mark.parametrize("subject", ["", "ada", "user:", "group:", "role:a", "user:a b", "user:a\n"])
def test_what_is_no_subject(subject: str) -> None:
    with pytest.raises(BadRequest):
        subject_of(subject)
    assert subject_of("group:lab") == ("group", "lab")


@pytest.mark.parametrize("name", ["", "a b", ".a", "a/b", "a\n", "a\x00", "ä", "x" * 129, "\ud800"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(BadRequest):
        check_name(name, "thing")


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 1001])
def test_what_no_database_keeps(text: str) -> None:
    with pytest.raises(BadRequest):
        check_text(text, "description")
    assert check_text("naïve ☃\n", "description")


def test_nobody_runs_as_root() -> None:
    for wrong in (0, -1, 2**31 - 1, 2**64):
        with pytest.raises(BadRequest):
            check_id(wrong, "uid")
    check_id(None, "uid")
    check_id(1, "gid")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_what_is_no_lifetime(seconds: float) -> None:
    with pytest.raises(BadRequest):
        check_lifetime(seconds)
