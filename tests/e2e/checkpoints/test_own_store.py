"""The example of a user's own store passes the suite that is shipped for such stores; stores that are wrong do not."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from clutch.testing import blobs_own_suite as suite

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_store.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_store", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_short() -> None:
    assert EXAMPLE.read_text().count("\n") < 60


def test_the_example_passes_the_suite(tmp_path: Path) -> None:
    kind = example().CompressedFolder
    (tmp_path / "local").mkdir()
    suite.check_own_store(lambda: kind(str(tmp_path / "store")), tmp_path / "local")
    assert list(kind(str(tmp_path / "store")).list("")) == []


class Forgetful(dict[str, bytes]):
    """In memory, and right."""

    def put(self, key: str, path: Path) -> None:
        self[key] = path.read_bytes()

    def get(self, key: str, path: Path) -> None:  # type: ignore[override]
        path.write_bytes(self[key])

    def list(self, prefix: str) -> Iterable[str]:
        return [key for key in self if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        self.pop(key, None)


class KeepsDeleted(Forgetful):
    def delete(self, key: str) -> None:
        pass


class CutsAtSlash(Forgetful):
    def list(self, prefix: str) -> Iterable[str]:
        return [key.rpartition("/")[2] for key in self if key.startswith(prefix)]


class NeverMissing(Forgetful):
    def get(self, key: str, path: Path) -> None:  # type: ignore[override]
        path.write_bytes(dict.get(self, key, b""))


class DoesNotReplace(Forgetful):
    def put(self, key: str, path: Path) -> None:
        self.setdefault(key, path.read_bytes())


def test_a_store_in_memory_passes_the_verbs(tmp_path: Path) -> None:
    store = Forgetful()
    suite.check_verbs(lambda: store, tmp_path)
    suite.check_threads(lambda: store, tmp_path)


@pytest.mark.parametrize("kind", [KeepsDeleted, CutsAtSlash, NeverMissing, DoesNotReplace])
def test_a_store_that_is_wrong_fails(kind: type[Forgetful], tmp_path: Path) -> None:
    store = kind()
    with pytest.raises(AssertionError):
        suite.check_verbs(lambda: store, tmp_path)
