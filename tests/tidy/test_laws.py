"""The laws of the house that a program can check. Each failure names file, line and law.

Loosening one of these needs a decision record in ``docs/decisions``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.tidy.source import ROOT, SOURCE, Module, modules

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 6
PROTOCOL_METHODS_MAX = 8

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "wire": (),
    "core": ("wire",),
    "consensus": ("wire", "core"),
    "backends": ("wire",),
    "runtime": ("wire", "backends"),
    "workloads": ("wire", "core", "consensus", "backends", "runtime"),
    "master": ("wire", "core", "backends"),
    "agent": ("wire", "core", "backends"),
    "sdk": ("wire",),
    "cli": ("wire", "sdk"),
    "testing": ("wire", "core", "consensus", "backends", "runtime", "workloads", "master", "agent", "sdk"),
}
"""Law 9: imports point one way."""

STRAIGHT_FROM_STORES = "sdk/downloads.py"
"""Reads checkpoints with the code that wrote them."""
SHELLS = re.compile(r"workloads/\w+/(routes|service|library)/\w+\.py")
"""A workload's part of the master: its routes, what carries news to its controller, what it keeps in tables."""

ROOTS = re.compile(r"(master|agent)/main\.py|cli/\w+\.py|(consensus|workloads/\w+)/main\.py")
"""Composition roots build everything by hand, so they may name every room."""

CONSENSUS_SHELLS = "driver|files|identity|keys|main|member|replicated_log|server|streams|transport|wal"
PURE = re.compile(
    rf"core/|wire/|consensus/(?!({CONSENSUS_SHELLS})\.py)|agent/brain\.py|master/contacts\.py"
    r"|workloads/\w+/(controller|search|machine)/|testing/sim/sweep\.py"
)
"""Law 1: the rooms and files that decide. In consensus, everything that is not named as a shell."""
IMPURE_MODULES = (
    "asyncio", "concurrent", "datetime", "fcntl", "glob", "io", "logging", "multiprocessing", "os", "pathlib",
    "secrets", "select", "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time",
    "urllib", "uuid", "zmq",
)  # fmt: skip
FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "misc", "old", "legacy", "v2", "bak")


def _where(module: Module, line: int, law: str) -> str:
    return f"src/clutch/{module.place}:{line}: {law}"


def _report(found: list[str]) -> None:
    assert not found, "\n".join(found)


def test_imports_point_one_way() -> None:
    found = []
    for module in modules():
        if not module.room or ROOTS.fullmatch(module.place):
            continue
        allowed = MAY_IMPORT[module.room] + (("master",) if SHELLS.fullmatch(module.place) else ())
        allowed += ("runtime",) if module.place == STRAIGHT_FROM_STORES else ()
        for line, name in module.imports():
            parts = name.split(".")
            if parts[0] != "clutch" or len(parts) < 2 or parts[1] == module.room:
                continue
            if parts[1] not in allowed:
                found.append(_where(module, line, f"{module.room} may not import {name} (law 9)"))
    _report(found)


def test_what_decides_is_pure() -> None:
    """Law 1: no await, socket, file, clock, chance or environment where decisions are made."""
    found = []
    for module in modules():
        if not PURE.match(module.place):
            continue
        for line, name in module.imports():
            if name.split(".")[0] in IMPURE_MODULES:
                found.append(_where(module, line, f"a decision may not import {name}"))
            if name.startswith("random") and name != "random.Random":
                found.append(_where(module, line, "chance is an argument: import only the type random.Random"))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncWith | ast.AsyncFor):
                found.append(_where(module, node.lineno, "a decision may not wait"))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "input"):
                found.append(_where(module, node.lineno, f"a decision may not call {node.func.id}"))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Random":
                found.append(_where(module, node.lineno, "chance is an argument"))
    _report(found)


def test_decisions_do_not_depend_on_the_order_of_a_set() -> None:
    """Law 1: a set's order differs between processes, so nothing pure may iterate one."""
    found = []
    for module in modules():
        if not PURE.match(module.place):
            continue
        for node in ast.walk(module.tree):
            iterated: list[ast.expr] = []
            if isinstance(node, ast.For):
                iterated = [node.iter]
            elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
                iterated = [generator.iter for generator in node.generators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple"):
                iterated = list(node.args)
            for value in iterated:
                made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
                named = made and value.func.id in ("set", "frozenset")  # type: ignore[attr-defined]
                if isinstance(value, ast.Set | ast.SetComp) or named:
                    found.append(_where(module, value.lineno, "iterates a set; sort it or use a dict"))
    _report(found)


def test_budgets() -> None:
    found = []
    for module in modules():
        lines = module.text.count("\n")
        if lines > FILE_LINES_MAX:
            found.append(
                _where(module, lines, f"{lines} lines, at most {FILE_LINES_MAX}: is there a second noun in it?")
            )
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(
                    _where(module, node.lineno, f"{node.name} has {length} lines, at most {FUNCTION_LINES_MAX}")
                )
            arguments = node.args
            names = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
            count = len([name for name in names if name not in ("self", "cls")])
            command = module.room == "cli"  # a command's parameters are its options
            if count > PARAMETERS_MAX and not command:
                found.append(
                    _where(module, node.lineno, f"{node.name} takes {count} parameters, at most {PARAMETERS_MAX}")
                )
    _report(found)


def test_protocols_are_small() -> None:
    """Law 8: at most eight verbs; more ability is another Protocol."""
    found = []
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and any(
                re.match(r"Protocol\b", ast.unparse(base)) for base in node.bases
            ):
                verbs = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
                if len(verbs) > PROTOCOL_METHODS_MAX:
                    found.append(_where(module, node.lineno, f"{node.name} has {len(verbs)} methods"))
    _report(found)


def test_every_backend_protocol_has_a_shipped_suite() -> None:
    rooms = [path.parent.name for path in (SOURCE / "backends").glob("*/base.py")]
    assert rooms
    missing = [room for room in rooms if not (SOURCE / "testing" / f"{room}_suite.py").exists()]
    assert not missing, f"no conformance suite is shipped for: {missing}"


def test_names_say_what_things_are() -> None:
    found = [
        f"src/clutch/{module.place}: {part!r} is not a noun of this house"
        for module in modules()
        for part in re.split(r"[/_.]", module.place)
        if part in FORBIDDEN_NAMES
    ]
    _report(found)


def test_every_module_says_what_it_is() -> None:
    _report([_where(m, 1, "no docstring") for m in modules() if not ast.get_docstring(m.tree)])


def test_no_pickle_in_any_process_of_ours() -> None:
    """P7: bytes of users are opaque; only an interpreter, which runs that user's code anyway, decodes a pickle."""
    found = [
        _where(module, line, f"imports {name}")
        for module in modules()
        for line, name in module.imports()
        if name.split(".")[0] in ("pickle", "cloudpickle", "dill", "marshal", "shelve")
    ]
    _report(found)


def test_no_leftovers() -> None:
    """No print outside the terminal's room, no bare except, no clean-up by the garbage collector."""
    found = []
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(_where(module, node.lineno, "bare except"))
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                found.append(_where(module, node.lineno, "__del__"))
            printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if printing and module.room != "cli":
                found.append(_where(module, node.lineno, "print outside cli"))
    _report(found)


def test_the_environment_is_read_in_one_place() -> None:
    """A member reads it in ``runtime/info``, a client in ``sdk/where`` (decision 1403), and testing for its servers
    and its bars."""
    testing = tuple(f"testing/{name}.py" for name in ("postgres", "seaweed", "docker", "bars"))
    allowed = ("runtime/info.py", "sdk/where.py", *testing)
    found = [
        _where(module, number, "reads the environment; only runtime/info.py may")
        for module in modules()
        if module.place not in allowed and module.room != "cli"
        for number, line in enumerate(module.text.splitlines(), 1)
        if re.search(r"os\.environ|os\.getenv", line)
    ]
    _report(found)


def test_every_test_file_has_a_name_of_its_own() -> None:
    """Test folders are not packages, so two files of one name cannot both be imported."""
    seen: dict[str, Path] = {}
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name in ("__init__.py", "conftest.py"):
            continue
        if path.name in seen:
            found.append(f"{path.relative_to(ROOT)} and {seen[path.name].relative_to(ROOT)}")
        seen[path.name] = path
    _report(found)


def test_no_mock_of_our_own_code() -> None:
    found = [
        f"{path.relative_to(ROOT)}: patches clutch"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != "test_laws.py"
        and re.search(r"mock\.patch|monkeypatch\.setattr\(\s*['\"]?clutch", path.read_text())
    ]
    _report(found)
