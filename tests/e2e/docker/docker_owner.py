"""Somebody with a private engine and a container in it, who can be killed: says the engine's folder."""

import sys

from clutch.backends.containers.docker_http import Engine
from clutch.testing.docker import BUSYBOX, temporary_engine

with temporary_engine() as engine:
    asked = Engine(str(engine.socket))
    body = {"Image": BUSYBOX, "Cmd": ["/bin/sleep", "600"], "HostConfig": {"NetworkMode": "host"}}
    made = asked.ask("POST", "/containers/create", body)["Id"]
    asked.ask("POST", f"/containers/{made}/start")
    print(engine.folder, flush=True)
    sys.stdin.readline()
