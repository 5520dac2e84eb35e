"""The library in a real cluster: an experiment ends and is told of, its checkpoint becomes a version and is kept."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from clutch.sdk import experiment_calls, library_calls, webhooks
from clutch.testing.cluster import Cluster, until
from clutch.wire.errors import Conflict
from clutch.wire.experiment_api import SubmitExperiment
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.library import NewModel, NewWebhook, PutConfig, RegisterVersion

TRIAL = """
import clutch
with clutch.init() as run:
    for step in (1, 2):
        run.validate(step, loss=1.0 / step)
        with run.checkpoint(step) as folder:
            (folder / "weights").write_text(f"weights of step {step}")
"""


class Hook(HTTPServer):
    """Receives webhooks; answers 500 to the first ``failures`` of them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.failures = 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class Answering(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers.items()), body))
        self.server.failures -= 1
        self.send_response(500 if self.server.failures >= 0 else 204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("library")) as made:
        made.start()
        made.add_agent("n1", slots=2)
        made.wait_nodes("n1")
        yield made


def trained(cluster: Cluster, folder: Path, **asked: str) -> tuple[str, list[CheckpointRow]]:
    """An experiment that has ended, and its committed checkpoints."""
    program = folder / "trial.py"
    program.write_text(TRIAL)
    config = {
        "name": "digits",
        "entrypoint": [sys.executable, str(program)],
        "searcher": {"name": "single", "metric": "loss"},
    }
    client = cluster.client
    asking = SubmitExperiment(config=config, **asked)
    experiment = client.perform(experiment_calls.submit_experiment(asking)).experiment

    def ended() -> bool:
        state = client.perform(experiment_calls.get_experiment(experiment)).view.state
        assert state != "failed", client.perform(experiment_calls.why_experiment(experiment))
        return state == "completed"

    until(ended, f"{experiment} completed", 60.0)
    rows = client.items(experiment_calls.list_checkpoints(experiment, state="committed"))
    return experiment, list(rows)


def test_an_end_is_told_and_a_version_keeps_its_checkpoint(cluster: Cluster, hook: Hook, tmp_path: Path) -> None:
    client = cluster.client
    new = NewWebhook(name="hook", scope="workspace:default", url=hook.url)
    secret = client.perform(library_calls.create_webhook(new)).secret
    experiment, rows = trained(cluster, tmp_path)

    until(lambda: len(hook.got) >= 2, "the message, tried again", 30.0)
    messages = [webhooks.read(secret, headers, body) for headers, body in hook.got]
    assert {(each.experiment, each.state, each.name) for each in messages} == {(experiment, "completed", "digits")}
    assert len({each.id for each in messages}) == 1

    best = min(rows, key=lambda row: row.value)
    client.perform(library_calls.create_model("default", NewModel(name="digits")))
    asked = RegisterVersion(checkpoint=best.key, aliases=("best",))
    made = client.perform(library_calls.register_version("default", "digits", asked))
    assert (made.number, made.metrics, made.experiment) == (1, {"validation": best.value}, experiment)
    held = client.perform(experiment_calls.get_checkpoint(best.key)).row
    assert held.pins == ",model:default/digits/1,"
    with pytest.raises(Conflict, match="model:default/digits/1"):
        client.perform(experiment_calls.delete_checkpoint(best.key))

    cluster.masters[0].kill()
    cluster.masters[0].start()
    cluster.wait_serving()
    client = cluster.client
    found = client.perform(library_calls.get_version("default", "digits", "best"))
    assert msgspec.structs.asdict(found) == msgspec.structs.asdict(made)
    files = client.checkpoint(found.checkpoint).download(tmp_path / "files")
    assert (files / "weights").read_text() == f"weights of step {best.step}"

    client.perform(library_calls.delete_version("default", "digits", 1))
    assert client.perform(experiment_calls.get_checkpoint(best.key)).row.pins == ""
    client.perform(experiment_calls.delete_checkpoint(best.key))
    client.perform(library_calls.delete_webhook("workspace:default", "hook"))


def test_an_experiment_is_laid_over_its_template_and_the_defaults(cluster: Cluster, tmp_path: Path) -> None:
    client = cluster.client
    client.perform(library_calls.put_defaults("", PutConfig(config={"max_restarts": 1, "description": "cluster"})))
    client.perform(library_calls.put_defaults("default", PutConfig(config={"max_restarts": 2})))
    client.perform(library_calls.put_template("default", "t", PutConfig(config={"labels": ["from-template"]})))
    try:
        experiment, _ = trained(cluster, tmp_path, template="t")
        view = client.perform(experiment_calls.get_experiment(experiment))
        assert view.config["max_restarts"] == 2
        assert (view.view.description, view.view.labels) == ("cluster", ",from-template,")
    finally:
        client.perform(library_calls.delete_defaults("default"))
        client.perform(library_calls.delete_defaults(""))
