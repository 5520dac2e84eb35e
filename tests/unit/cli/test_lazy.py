"""The command line's table says what the commands say, and costs little."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import typer
import typer.testing
from typer.core import TyperGroup

from clutch.cli.main import TABLE, app
from clutch.cli.reading import NOT_PLAIN, plain

ROOT = typer.main.get_command(app)


@pytest.mark.parametrize("name", TABLE)
def test_every_row_leads_to_a_command(name: str) -> None:
    assert isinstance(ROOT, TyperGroup)
    command = ROOT.commands[name]
    assert command.name == name
    assert isinstance(command, TyperGroup) == TABLE[name].group
    assert command.help
    if TABLE[name].group:
        help = typer.testing.CliRunner().invoke(app, [name, "--help"]).stdout
        assert "..." not in help.partition("Commands:")[2], "no sentence is cut off"


def test_help_names_every_command_and_loads_none() -> None:
    code = (
        "import sys; from clutch.cli.main import app; sys.argv = ['clutch', '--help']\n"
        "try: app()\nexcept SystemExit: pass\n"
        "loaded = [m for m in sys.modules if m.startswith('clutch.') and m not in"
        " ('clutch.cli', 'clutch.cli.main', 'clutch.cli.lazy', 'clutch.cli.reading', 'clutch.wire',"
        " 'clutch.wire.version')]\n"
        "assert not loaded, loaded; assert not {'rich', 'asyncio', 'http', 'msgspec'} & set(sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert out.returncode == 0, out.stderr
    for name in TABLE:
        assert f"\n  {name} " in out.stdout


@pytest.mark.parametrize("name", ["run", "ps", "logs", "set", "doctor"])
@pytest.mark.parametrize("text", ["1", "0", "-1", "42", "99", "100", "1.5", "x", "", " 7", "1_0", "1e3", "٣", "9" * 30])
def test_what_is_read_lightly_is_read_as_typer_reads_it(name: str, text: str) -> None:
    """Every value that is let through is the one that typer would have given; all others are left to typer."""
    command = ROOT.commands[name]  # type: ignore[attr-defined]
    context = typer.Context(command)
    for param in command.params:
        several = param.multiple or param.nargs == -1
        for value in ((text,) if several else text, None if not param.required else text, param.default):
            found = plain(param, param.type_descriptor, value)
            if found is not NOT_PLAIN:
                slow = param.get_runtime_param().coerce(value, param=param, ctx=context)
                assert (list(found), list(slow)) == (list(slow),) * 2 if several else found == slow


def test_help_is_quick() -> None:
    """In CPU time: the wall clock would measure whoever else uses this machine."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "clutch.cli.main", "--help"], check=True, capture_output=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 0.2, took


def test_a_master_may_be_named_before_and_behind_the_command() -> None:
    for words in (["--master", "http://127.0.0.1:1", "whoami"], ["whoami", "--master", "http://127.0.0.1:1"]):
        out = subprocess.run(
            [sys.executable, "-m", "clutch.cli.main", *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert out.returncode == 1
        assert out.stderr.startswith("clutch: http://127.0.0.1:1: no master answers there: Connection refused.")


def test_an_unknown_command_suggests_one() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "clutch.cli.main", "pss"], capture_output=True, text=True, check=False, timeout=60
    )
    assert out.returncode == 2
    assert "Did you mean 'ps'?" in out.stderr
