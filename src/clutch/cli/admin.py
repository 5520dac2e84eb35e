"""``clutch user|group|workspace|project|role|quota``: people, places, and who may do what where."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clutch.cli.lists import Column, Json, Watch, moment, show_list
from clutch.cli.where import connect
from clutch.wire.errors import BadRequest

user = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
workspace = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
project = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
role = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
quota = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Its name.")]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Whose.")]
Description = Annotated[str, typer.Option("--description", help="What it is for.")]
Subject = Annotated[str, typer.Argument(help="user:NAME or group:NAME; a bare name is a user.")]
Over = Annotated[str, typer.Option("--over", help="A workspace's name, or 'cluster'.")]


def read_secret(question: str) -> str:
    """A line that nobody else should see: asked for on a terminal, read from input elsewhere."""
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(question)
    return sys.stdin.readline().rstrip("\n")


def subject_of(text: str) -> str:
    return text if ":" in text else f"user:{text}"


def scope_of(text: str) -> str:
    return text if text == "cluster" or ":" in text else f"workspace:{text}"


# -- users --------------------------------------------------------------------------------------------------------

USERS = (
    Column("name", lambda found: found.name),
    Column("active", lambda found: "yes" if found.active else "no", 1),
    Column("runs as", lambda found: "" if found.uid is None else f"{found.uid}:{found.gid}", 2),
    Column("groups", lambda found: ",".join(found.groups), 3),
    Column("called", lambda found: found.display_name, 4),
    Column("since", lambda found: moment(found.created_at), 5),
)


@user.command("list")
def list_users(context: typer.Context, as_json: Json = False, watch: Watch = False) -> None:
    """List users."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        show_list(lambda: list(client.items(access_calls.list_users())), USERS, as_json=as_json, watch=watch)


@user.command("create")
def create_user(
    context: typer.Context,
    name: Name,
    display_name: Annotated[str, typer.Option(help="What people call them.")] = "",
    uid: Annotated[int | None, typer.Option(min=0, help="What their tasks run as.")] = None,
    gid: Annotated[int | None, typer.Option(min=0, help="And the group.")] = None,
    no_password: Annotated[bool, typer.Option("--no-password", help="Only tokens let them in.")] = False,
) -> None:
    """Create a user; the password is asked for, or read from input."""
    from clutch.sdk import access_calls
    from clutch.wire.access import NewUser

    password = "" if no_password else read_secret(f"Password for {name}: ")
    asked = NewUser(name=name, password=password, display_name=display_name, uid=uid, gid=gid)
    with connect(context) as client:
        client.perform(access_calls.create_user(asked))
    typer.echo(f"user {name}: created")


@user.command("change")
def change_user(
    context: typer.Context,
    name: Name,
    display_name: Annotated[str | None, typer.Option(help="What people call them.")] = None,
    active: Annotated[bool | None, typer.Option("--active/--inactive", help="Whether they may come in.")] = None,
    uid: Annotated[int | None, typer.Option(min=0, help="What their tasks run as.")] = None,
    gid: Annotated[int | None, typer.Option(min=0, help="And the group.")] = None,
) -> None:
    """Change a user."""
    from clutch.sdk import access_calls
    from clutch.wire.access import UserChange

    change = UserChange(display_name=display_name, active=active, uid=uid, gid=gid)
    with connect(context) as client:
        client.perform(access_calls.change_user(name, change))
    typer.echo(f"user {name}: changed")


@user.command("password")
def change_password(context: typer.Context, name: Annotated[str, typer.Argument(help="Whose; yours.")] = "") -> None:
    """Change a password: your own, or as an administrator somebody's."""
    from clutch.sdk import access_calls
    from clutch.wire.access import UserChange

    with connect(context) as client:
        me = client.perform(access_calls.who_am_i()).name
        current = read_secret("Current password: ") if name in ("", me) else ""
        change = UserChange(password=read_secret("New password: "), current_password=current)
        client.perform(access_calls.change_user(name or me, change))
    typer.echo(f"user {name or me}: password changed")


# -- groups -------------------------------------------------------------------------------------------------------

GROUPS = (Column("name", lambda found: found.name), Column("members", lambda found: ",".join(found.members), 1))


@group.command("list")
def list_groups(context: typer.Context, as_json: Json = False, watch: Watch = False) -> None:
    """List groups and who is in them."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        show_list(lambda: list(client.items(access_calls.list_groups())), GROUPS, as_json=as_json, watch=watch)


@group.command("create")
def create_group(
    context: typer.Context, name: Name, members: Annotated[list[str] | None, typer.Argument(help="Users.")] = None
) -> None:
    """Create a group."""
    from clutch.sdk import access_calls
    from clutch.wire.access import NewGroup

    with connect(context) as client:
        client.perform(access_calls.create_group(NewGroup(name, tuple(members or ()))))
    typer.echo(f"group {name}: created")


@group.command("add")
def add_members(context: typer.Context, name: Name, users: Annotated[list[str], typer.Argument(help="Users.")]) -> None:
    """Add users to a group."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        for each in users:
            client.perform(access_calls.add_member(name, each))
    typer.echo(f"group {name}: added {', '.join(users)}")


@group.command("remove")
def remove_members(
    context: typer.Context, name: Name, users: Annotated[list[str], typer.Argument(help="Users.")]
) -> None:
    """Take users out of a group."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        for each in users:
            client.perform(access_calls.remove_member(name, each))
    typer.echo(f"group {name}: removed {', '.join(users)}")


@group.command("delete")
def delete_group(context: typer.Context, name: Name) -> None:
    """Delete a group; its members stay users."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        client.perform(access_calls.delete_group(name))
    typer.echo(f"group {name}: deleted")


# -- workspaces and projects --------------------------------------------------------------------------------------

WORKSPACES = (
    Column("name", lambda found: found.name),
    Column("your role", lambda found: found.role or ""),
    Column("state", lambda found: "archived" if found.archived else "", 1),
    Column("description", lambda found: found.description, 2),
)
PROJECTS = (WORKSPACES[0], Column("workspace", lambda found: found.workspace), *WORKSPACES[2:])


@workspace.command("list")
def list_workspaces(context: typer.Context, as_json: Json = False, watch: Watch = False) -> None:
    """List the workspaces you may see."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        show_list(lambda: list(client.items(access_calls.list_workspaces())), WORKSPACES, as_json=as_json, watch=watch)


@workspace.command("create")
def create_workspace(context: typer.Context, name: Name, description: Description = "") -> None:
    """Create a workspace."""
    from clutch.sdk import access_calls
    from clutch.wire.access import NewWorkspace

    with connect(context) as client:
        client.perform(access_calls.create_workspace(NewWorkspace(name, description)))
    typer.echo(f"workspace {name}: created")


@workspace.command("archive")
def archive_workspace(
    context: typer.Context, name: Name, undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False
) -> None:
    """Archive a workspace: it takes nothing new."""
    from clutch.sdk import access_calls
    from clutch.wire.access import PlaceChange

    with connect(context) as client:
        client.perform(access_calls.change_workspace(name, PlaceChange(archived=not undo)))
    typer.echo(f"workspace {name}: {'back' if undo else 'archived'}")


@project.command("list")
def list_projects(
    context: typer.Context, workspace: Workspace = "default", as_json: Json = False, watch: Watch = False
) -> None:
    """List the projects of a workspace."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        show_list(
            lambda: list(client.items(access_calls.list_projects(workspace))), PROJECTS, as_json=as_json, watch=watch
        )


@project.command("create")
def create_project(
    context: typer.Context, name: Name, workspace: Workspace = "default", description: Description = ""
) -> None:
    """Create a project in a workspace."""
    from clutch.sdk import access_calls
    from clutch.wire.access import NewProject

    with connect(context) as client:
        client.perform(access_calls.create_project(workspace, NewProject(name, description)))
    typer.echo(f"project {workspace}/{name}: created")


@project.command("archive")
def archive_project(
    context: typer.Context,
    name: Name,
    workspace: Workspace = "default",
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
) -> None:
    """Archive a project: it takes nothing new."""
    from clutch.sdk import access_calls
    from clutch.wire.access import PlaceChange

    with connect(context) as client:
        client.perform(access_calls.change_project(workspace, name, PlaceChange(archived=not undo)))
    typer.echo(f"project {workspace}/{name}: {'back' if undo else 'archived'}")


# -- roles and quotas ---------------------------------------------------------------------------------------------

ROLES = (
    Column("who", lambda found: found.subject),
    Column("role", lambda found: found.role),
    Column("over", lambda found: found.scope),
)
QUOTAS = (Column("whose", lambda found: found.scope), Column("slots", lambda found: found.slots, right=True))


@role.command("list")
def list_roles(
    context: typer.Context,
    over: Annotated[str, typer.Option("--over", help="Only over this workspace, or 'cluster'.")] = "",
    subject: Annotated[str, typer.Option("--who", help="Only of this user or group.")] = "",
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """List who holds which role where."""
    from clutch.sdk import access_calls

    filters = {"over": scope_of(over) if over else "", "subject": subject_of(subject) if subject else ""}
    with connect(context) as client:
        show_list(lambda: list(client.items(access_calls.list_roles(**filters))), ROLES, as_json=as_json, watch=watch)


@role.command("grant")
def grant_role(
    context: typer.Context,
    subject: Subject,
    role: Annotated[str, typer.Argument(help="viewer, editor or admin.")],
    over: Over = "default",
) -> None:
    """Give a user or a group a role over a workspace or the cluster."""
    from clutch.sdk import access_calls
    from clutch.wire.access import Role, RoleGrant

    if role not in tuple(Role):
        raise BadRequest(f"there is no role {role!r}", object="role", next_step=f"One of {', '.join(Role)}.")
    grant = RoleGrant(subject_of(subject), Role(role), scope_of(over))
    with connect(context) as client:
        client.perform(access_calls.grant_role(grant))
    typer.echo(f"{grant.subject}: {role} of {grant.scope}")


@role.command("take")
def take_role(context: typer.Context, subject: Subject, over: Over = "default") -> None:
    """Take a user's or group's role away."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        client.perform(access_calls.take_role(subject_of(subject), scope_of(over)))
    typer.echo(f"{subject_of(subject)}: no role of its own over {scope_of(over)}")


@quota.command("list")
def list_quotas(context: typer.Context, as_json: Json = False, watch: Watch = False) -> None:
    """List quotas."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        show_list(lambda: client.perform(access_calls.list_quotas()).items, QUOTAS, as_json=as_json, watch=watch)


@quota.command("set")
def set_quota(
    context: typer.Context,
    whose: Annotated[str, typer.Argument(help="user:NAME or workspace:NAME; a bare name is a user.")],
    slots: Annotated[int, typer.Argument(min=0, help="The most slots at once.")],
) -> None:
    """Bound the slots that a user or a workspace holds at once."""
    from clutch.sdk import access_calls
    from clutch.wire.specs import Quota

    with connect(context) as client:
        client.perform(access_calls.set_quota(Quota(subject_of(whose), slots)))
    typer.echo(f"{subject_of(whose)}: at most {slots} slots")


@quota.command("remove")
def remove_quota(
    context: typer.Context, whose: Annotated[str, typer.Argument(help="user:NAME or workspace:NAME.")]
) -> None:
    """Take a quota away."""
    from clutch.sdk import access_calls

    with connect(context) as client:
        client.perform(access_calls.remove_quota(subject_of(whose)))
    typer.echo(f"{subject_of(whose)}: no quota")
