"""The source tree as syntax trees, read once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "clutch"


class Module:
    """One source file: its dotted name, text and tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path.relative_to(SOURCE).as_posix()
        parts = list(path.relative_to(SOURCE.parent).with_suffix("").parts)
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.text = path.read_text()
        self.tree = ast.parse(self.text)

    @property
    def room(self) -> str:
        """The package under ``clutch`` it belongs to; empty for the public door."""
        return self.name.split(".")[1] if "." in self.name else ""

    def imports(self) -> list[tuple[int, str]]:
        """(line, dotted module) of every import, except those only a type checker sees."""
        hidden = {
            id(inner)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        found: list[tuple[int, str]] = []
        for node in ast.walk(self.tree):
            if id(node) in hidden:
                continue
            if isinstance(node, ast.Import):
                found += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        return found


@cache
def modules() -> tuple[Module, ...]:
    return tuple(Module(path) for path in sorted(SOURCE.rglob("*.py")))
