"""Commands that are fetched when they are used: ``clutch --help`` reads one table and imports none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from clutch.cli.reading import lighten

SENTENCE_MAX = 300


class Said:
    """What was said about the cluster on the command line, before or behind the command's name."""

    def __init__(self, master: str = "", token: str = "", ca_file: str = "") -> None:
        self.master = master
        self.token = token
        self.ca_file = ca_file


class Lazy(NamedTuple):
    """Where a command lives: a function, or a typer app that holds it, or is it, when it is a group."""

    module: str
    help: str
    group: bool = False
    attribute: str = "app"
    cluster: bool = True
    """It talks to a master, so it takes ``--master`` and ``--token`` behind its name too."""


class LazyCommands(MutableMapping[str, Any]):
    """Loaded commands first, then the table's; each is loaded when it is asked for."""

    def __init__(self, loaded: Mapping[str, Any], table: Mapping[str, Lazy]) -> None:
        self._loaded = dict(loaded)
        self.table = table

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self.table[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.table
        yield from (name for name in self._loaded if name not in self.table)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self.table


def _load(name: str, lazy: Lazy) -> Any:
    found = getattr(import_module(lazy.module), lazy.attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(rich_markup_mode=None)
        found.command(name)(function)
    group = get_group(found)
    command = group if lazy.group else group.commands[name]
    command.name = name
    if lazy.group:
        command.help = command.help or lazy.help
        _list_whole(command)
    if lazy.cluster:
        add_place(command)
    _lighten(command)
    return command


def _list_whole(group: Any) -> None:
    """Its help says the first sentence of each command to its end, over several lines where it must."""

    def format_commands(context: Any, formatter: Any) -> None:
        rows = [(name, one.get_short_help_str(SENTENCE_MAX)) for name, one in group.commands.items() if not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    group.format_commands = format_commands


def _lighten(command: Any) -> None:
    """All parameters of a command and of those below it, the ones that typer adds by itself too."""
    whole = command.get_params

    def get_params(context: Any) -> list[Any]:
        found: list[Any] = whole(context)
        for param in found:
            lighten(param)
        return found

    command.get_params = get_params
    for inner in command.commands.values() if isinstance(command, TyperGroup) else ():
        _lighten(inner)


def add_place(command: Any) -> None:
    """Lets a command, and all below it, take ``--master`` and ``--token`` behind its name, as it may before it."""
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            add_place(inner)
        return
    taken = {opt for param in command.params for opt in param.opts}
    command.params += [param for param in _place_options() if not taken & set(param.opts)]


def _place_options() -> list[Any]:
    """The hidden options, made by typer itself."""
    maker = typer.Typer(rich_markup_mode=None)
    maker.command("place")(_place)
    made = get_group(maker).commands["place"].params
    for option in made:
        option.expose_value = False
    return list(made)


def _remember(context: typer.Context, param: typer.CallbackParam, value: str) -> str:
    if value and param.name:
        setattr(context.find_root().obj, param.name, value)
    return value


def _place(
    master: Annotated[str, typer.Option("--master", hidden=True, callback=_remember)] = "",
    token: Annotated[str, typer.Option("--token", hidden=True, callback=_remember)] = "",
) -> None:
    """Never called: only its options are used."""


class LazyGroup(TyperGroup):
    """A group whose commands stand in a table. Its subclass names the table."""

    table: Mapping[str, Lazy] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(self.commands, self.table)

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)
        for param in found:
            lighten(param)
        return found

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # typer's own
        rows = [
            (name, self.table[name].help if name in self.table else self.commands[name].get_short_help_str(80))
            for name in self.commands
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
