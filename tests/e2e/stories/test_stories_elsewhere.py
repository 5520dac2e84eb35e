"""What happens outside: scripts that nobody schedules, receivers of webhooks, configurations that lie beneath."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from stories_ground import Ground

from clutch.sdk import experiment_calls, library_calls, webhooks
from clutch.testing.cluster import until
from clutch.wire.errors import NotAuthenticated
from clutch.wire.library import NewWebhook, PutConfig
from clutch.wire.output import OutputQuery

DETACHED = """
import sys, time
from pathlib import Path
import clutch

with clutch.init(hparams={"base": 1.0}, detached=True, name="laptop", resume="night-run") as run:
    found = run.latest_checkpoint
    begin = int((found / "step").read_text()) if found else 0
    print(f"begins at {begin} in epoch {run.epoch}", flush=True)
    for step in range(begin + 1, 7):
        run.report(step, speed=1.0)
        run.validate(step, loss=1.0 / step)
        if step % 2 == 0:
            with run.checkpoint(step) as folder:
                (folder / "step").write_text(str(step))
        if step == 5 and run.epoch == 1:
            Path(sys.argv[1]).touch()
            time.sleep(600)
"""


class Receiver(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.got: list[tuple[dict[str, str], bytes]] = []


class Answering(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers.items()), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_detached_run_that_is_killed_goes_on_under_its_key(ground: Ground, tmp_path: Path) -> None:
    """A plain process with no agent near it: killed after step 5, it goes on from what it saved at 4."""
    script, reached = tmp_path / "laptop.py", tmp_path / "reached"
    script.write_text(DETACHED)
    command = [sys.executable, str(script), str(reached)]
    first = subprocess.Popen(command, cwd=tmp_path, env=ground.environment())
    try:
        until(reached.exists, "its fifth step", 60.0)
        (view,) = ground.client.perform(experiment_calls.list_experiments(name="laptop")).items
        ground.reached(f"{view.key}.1", 5)
        until(lambda: printed(ground, f"{view.key}.1"), "what it printed")
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait(30)
    assert ground.view(view.key).state == "active", "nobody has heard yet that it died"
    done = subprocess.run(
        command, cwd=tmp_path, env=ground.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    ground.ended(view.key)
    trial = ground.trial(f"{view.key}.1")
    assert (trial.state, trial.epoch, trial.last_step, trial.checkpoint_step) == ("completed", 2, 6, 6)
    assert [step for step, _ in ground.curve(trial.key, "validation", "loss")] == [1, 2, 3, 4, 5, 6]
    assert ground.file(trial.checkpoint, "step") == b"6"
    assert printed(ground, trial.key) == ["begins at 0 in epoch 1", "begins at 4 in epoch 2"]
    assert len(ground.client.perform(experiment_calls.list_experiments(name="laptop")).items) == 1


def printed(ground: Ground, trial: str) -> list[str]:
    call = experiment_calls.read_trial_output(trial, OutputQuery(task=trial))
    return [line.text for line in ground.client.perform(call).lines]


def test_a_webhook_is_told_with_a_signature(ground: Ground, receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    hook = NewWebhook(name="told", scope="workspace:default", url=url, experiments=("told-*",))
    secret = ground.client.perform(library_calls.create_webhook(hook)).secret
    quiet = ground.start(["validate"], 1, name="untold")
    good = ground.start(["validate"], 1, name="told-good")
    bad = ground.start(["fail"], 1, name="told-bad")
    ground.ended(quiet)
    ground.ended(good)
    ground.ended(bad, "failed")
    until(lambda: len(receiver.got) >= 2, "both messages", 30.0)
    messages = [webhooks.read(secret, *one) for one in receiver.got]
    assert {(one.experiment, one.state) for one in messages} == {(good, "completed"), (bad, "failed")}
    headers, body = receiver.got[0]
    for wrong in ((secret + "x", headers, body), (secret, headers, body + b" ")):
        with pytest.raises(NotAuthenticated):
            webhooks.read(*wrong)


def test_templates_and_defaults_lie_beneath(ground: Ground) -> None:
    client = ground.client
    client.perform(library_calls.put_defaults("default", PutConfig(config={"description": "default", "labels": ["w"]})))
    template = PutConfig(config={"description": "template", "hyperparameters": {"base": 5.0, "steps": 9}})
    client.perform(library_calls.put_template("default", "short", template))
    try:
        config = ground.config(["validate"], 2, labels=["mine"])
        plain = ground.submit(config).experiment
        laid = ground.submit(config, template="short").experiment
        ground.ended(plain)
        ground.ended(laid)
    finally:
        client.perform(library_calls.delete_defaults("default"))
        client.perform(library_calls.delete_template("default", "short"))
    assert (ground.view(plain).description, ground.view(laid).description) == ("default", "template")
    assert sorted(ground.view(laid).labels.strip(",").split(",")) == ["mine", "w"]
    assert ground.trial(f"{laid}.1").last_step == 2, "what its user wrote counts first"
    assert round(ground.view(laid).best, 1) == 2.5, "and what the template wrote counts where they did not"
