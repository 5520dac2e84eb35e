"""Detached runs that fall silent, and checkpoints that members of other workspaces ask for."""

from __future__ import annotations

import time
from pathlib import Path

from api_house import open_house, until_true

from clutch.workloads.experiment.service.detached import SILENT_S


async def test_a_run_of_which_nothing_is_heard_has_failed_and_one_that_speaks_has_not(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        runs = []
        for key in ("silent", "loud"):
            answer = await client.post("/api/v1/detached", json={"name": key, "key": key})
            assert answer.status_code == 201, answer.text
            runs.append(answer.json())
        detached = house.experiments.detached
        later = time.monotonic() + SILENT_S + 1.0
        detached._heard_at[runs[1]["experiment"]] = later  # as if it had just spoken
        await detached.look(later)

        async def ended() -> bool:
            view = (await client.get(f"/api/v1/experiments/{runs[0]['experiment']}")).json()["view"]
            return bool(view["state"] == "failed")

        await until_true(ended)
        trial = (await client.get(f"/api/v1/trials/{runs[0]['trial']}")).json()["view"]
        assert "nothing was heard" in trial["detail"]
        loud = (await client.get(f"/api/v1/experiments/{runs[1]['experiment']}")).json()["view"]
        assert loud["state"] == "active"
        house.tokens.update(silent=runs[0]["token"], loud=runs[1]["token"])
        async with house.client("silent") as silent, house.client("loud") as other:
            assert (await silent.post("/api/v1/run/heartbeat")).status_code == 401, "its token ended with it"
            assert (await other.post("/api/v1/run/heartbeat")).status_code == 200


async def test_a_member_finds_checkpoints_of_its_own_workspace_alone(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        await house.workspace("other")
        for key, workspace in (("a", "default"), ("b", "default"), ("c", "other")):
            begun = await client.post("/api/v1/detached", json={"name": key, "key": key, "workspace": workspace})
            house.tokens[key] = begun.json()["token"]
        async with house.client("a") as first:
            made = (await first.post("/api/v1/run/checkpoints", json={"step": 1})).json()["id"]
            assert (await first.post(f"/api/v1/run/checkpoints/{made}/commit", json={"step": 1})).status_code == 200
        async with house.client("b") as near, house.client("c") as far:
            assert (await near.get(f"/api/v1/run/checkpoints/{made}")).json()["id"] == made
            assert (await far.get(f"/api/v1/run/checkpoints/{made}")).status_code == 404
