"""Who does not submit a configuration does not pay for reading one."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _loads(statement: str, *forbidden: str) -> None:
    code = f"import sys; {statement}; found = [m for m in {forbidden!r} if m in sys.modules]; assert not found, found"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "import clutch",
        "from clutch import Client",
        "import clutch.cli.main",
        "import clutch.workloads.experiment.config",
        "from clutch.workloads.experiment.config import search_option; search_option('a=log(1,10)')",
        "from clutch.workloads.experiment.config import config_in; config_in('a: 1')",
        "from clutch.workloads.experiment.config import merged; merged([{}, {}])",
        "import clutch.workloads.experiment.search.base",
    ],
)
def test_pydantic_is_not_loaded(statement: str) -> None:
    _loads(statement, "pydantic", "pydantic_core")


def test_yaml_is_not_loaded_by_the_command_line() -> None:
    _loads("import clutch.cli.main", "yaml", "clutch.workloads.experiment.config")


def test_names_are_all_there() -> None:
    from clutch.workloads.experiment import config

    assert all(callable(getattr(config, name)) for name in config.__all__)
    with pytest.raises(AttributeError):
        config.nothing  # noqa: B018
