"""The documentation says what the code says, in both directions: nothing is missing, nothing is left over."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from clutch.cli.main import app
from clutch.core import allocation, lease, machines, member, node, task
from clutch.core.machine import Table
from clutch.testing.sim.mutations import MUTATIONS
from clutch.testing.sim.plan import FaultKind
from clutch.wire import errors, events
from clutch.wire.facts import FACTS
from clutch.wire.outcomes import AllocationState, LeaseState, MachineState, MemberState, NodeState, TaskState, Verdict
from clutch.wire.schedule import PreemptReason, WaitCode
from tests.tidy.source import ROOT

DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
MACHINES: dict[str, tuple[Table[StrEnum], type[StrEnum]]] = {
    "Node": (node.TABLE, NodeState),  # type: ignore[dict-item]  # a table is of its own enum
    "Machine": (machines.TABLE, MachineState),  # type: ignore[dict-item]
    "Task": (task.TABLE, TaskState),  # type: ignore[dict-item]
    "Allocation": (allocation.TABLE, AllocationState),  # type: ignore[dict-item]
    "Member": (member.TABLE, MemberState),  # type: ignore[dict-item]
    "Lease": (lease.TABLE, LeaseState),  # type: ignore[dict-item]
}


def _read(name: str) -> str:
    return (DOCS / name).read_text()


def _section(text: str, title: str) -> str:
    """What stands between a heading of the second level and the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title!r}"
    return found[1]


def _rows(text: str) -> list[list[str]]:
    """Rows of the tables in a text whose first cell is one piece of code, as lists of plain cells."""
    found = []
    for line in text.splitlines():
        if re.match(r"\| `[^`]+` \|", line):
            found.append([cell.strip().strip("`") for cell in line.strip("|").split(" | ")])
    return found


def _same(documented: list[str], known: list[str], what: str) -> None:
    missing = [name for name in known if name not in documented]
    left_over = [name for name in documented if name not in known]
    assert not missing, f"{what}: not documented: {', '.join(missing)}"
    assert not left_over, f"{what}: documented and no longer there: {', '.join(left_over)}"
    assert len(documented) == len(set(documented)), f"{what}: documented twice"


# -- machines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_the_diagram_of_a_machine_is_its_table(name: str) -> None:
    table, states = MACHINES[name]
    section = _section(_read("architecture/machines.md"), name)
    shown = re.findall(r"```mermaid\n(.*?)\n```", section, re.DOTALL)
    assert shown == [table.diagram()], f"machines.md, {name}: the diagram must be\n{table.diagram()}"
    _same([row[0] for row in _rows(section)], list(states), f"states of a {table.name}")


# -- the reference ------------------------------------------------------------------------------------------------


def test_every_fact_is_documented_with_its_version() -> None:
    rows = _rows(_section(_read("reference.md"), "Facts"))
    _same([row[0] for row in rows], list(FACTS), "facts")
    for kind, version, meaning in rows:
        assert int(version) == FACTS[kind].version, f"fact {kind} has version {FACTS[kind].version}"
        assert meaning


def test_every_event_is_documented() -> None:
    known = [name for name, kind in vars(events).items() if _is_event(kind) and kind is not events.Event]
    _same([row[0] for row in _rows(_section(_read("reference.md"), "Events"))], known, "events")


def _is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, events.Event)


def test_every_error_is_documented_with_status_and_blame() -> None:
    tree = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ClutchError)]
    rows = _rows(_section(_read("reference.md"), "Errors"))
    _same([row[0] for row in rows], [kind.code for kind in tree], "error codes")
    by_code = {kind.code: kind for kind in tree}
    for code, status, blame, *_ in rows:
        kind = by_code[code]
        assert (int(status), blame) == (kind.status, kind.blame), f"error {code}: {kind.status}, {kind.blame}"


def test_every_wait_code_is_documented() -> None:
    _same([row[0] for row in _rows(_section(_read("reference.md"), "Wait codes"))], list(WaitCode), "wait codes")


def test_every_reason_to_leave_and_every_verdict_is_documented() -> None:
    documented = [row[0] for row in _rows(_section(_read("reference.md"), "Reasons and verdicts"))]
    _same(documented, [*PreemptReason, *Verdict], "reasons and verdicts")
    rules = _section(_read("architecture/control-plane.md"), "Exit rules")
    assert [verdict for verdict in Verdict if f"`{verdict}`" not in rules] == []


# -- simulation ---------------------------------------------------------------------------------------------------


def test_every_fault_and_every_mutation_of_the_simulator_is_documented() -> None:
    text = _read("architecture/simulation.md")
    _same([row[0] for row in _rows(_section(text, "A seed's day"))], list(FaultKind), "faults")
    _same([row[0] for row in _rows(_section(text, "Mutations"))], list(MUTATIONS), "mutations")


# -- commands -----------------------------------------------------------------------------------------------------


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for inner_name, inner in command.commands.items():
            if not inner.hidden:
                yield from _commands(inner, f"{name} {inner_name}")
    else:
        yield name, command


def _groups(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        yield name, command
        for inner_name, inner in command.commands.items():
            yield from _groups(inner, f"{name} {inner_name}")


GROUPS = dict(_groups(typer.main.get_command(app), "clutch"))
COMMANDS = dict(_commands(typer.main.get_command(app), "clutch"))


def _options(command: Any) -> list[str]:
    """The options of a command, each by its first long name."""
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    return [next(name for name in option.opts if name.startswith("--")) for option in options]


def test_every_command_is_documented_with_its_options() -> None:
    rows = _rows(_section(_read("reference.md"), "Commands"))
    _same([row[0] for row in rows], list(COMMANDS), "commands")
    for name, _, options in rows:
        _same(re.findall(r"--[a-z-]+", options), _options(COMMANDS[name]), f"options of {name}")


def _quoted_commands() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            yield from ((page, line) for line in block.splitlines() if line.startswith("clutch "))
        yield from ((page, code) for code in re.findall(r"`(clutch [^`]+)`", text.replace("\n", " ")))


def test_every_command_in_the_pages_exists() -> None:
    """Not run here, only understood: the words lead to a command and the options are its own."""
    for page, line in _quoted_commands():
        words = list(itertools.takewhile(lambda word: word != "--", shlex.split(line)))  # behind it: the user's own
        where = f"{page.relative_to(ROOT)}: {line}"
        if "COMMAND" in words or words[1] == "--help":
            continue
        known = {**GROUPS, **COMMANDS}
        name = max((name for name in known if f"{line} ".startswith(f"{name} ")), key=len, default="")
        assert name != "clutch", f"{where}: there is no such command"
        allowed = [opt for p in known[name].params for opt in (*p.opts, *p.secondary_opts)]
        unknown = [word for word in words if word.startswith("-") and word.partition("=")[0] not in allowed]
        assert not unknown, f"{where}: it has no option {unknown}"


def test_every_make_target_in_the_pages_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert target in targets, f"{page.relative_to(ROOT)}: there is no target {target}"
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    described = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    missing = [target for target in described if f"`make {target}`" not in contributing]
    assert not missing, f"CONTRIBUTING.md says nothing of: {missing}"


# -- pages --------------------------------------------------------------------------------------------------------


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            headings = (
                re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                if found.suffix == ".md" and found.is_file()
                else []
            )
            if not found.exists() or (anchor and anchor not in map(_anchor, headings)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)


def test_source_files_named_in_the_pages_exist() -> None:
    """``core/wanted.py`` and the like; a page about the future names a room, not a file."""
    names = re.compile(r"`(?:src/clutch/)?((?:wire|core|consensus|backends|master|agent|cli|testing)/[\w/]+\.py)`")
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in names.findall(page.read_text())
        if not (ROOT / "src" / "clutch" / name).exists()
    ]
    assert not missing, "\n".join(missing)


def test_decisions_are_numbered_once_and_named_for_their_number() -> None:
    records = sorted((DOCS / "decisions").glob("*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(numbers) == len(set(numbers)), f"a number is used twice: {numbers}"
    for record in records:
        title = record.read_text().splitlines()[0]
        assert re.match(rf"# {record.name[:4]}\b", title), f"{record.name} is titled {title!r}"


def test_every_page_of_the_architecture_is_listed() -> None:
    index = _read("README.md")
    missing = [page.name for page in (DOCS / "architecture").glob("*.md") if f"architecture/{page.name}" not in index]
    assert not missing, f"docs/README.md does not list: {missing}"
