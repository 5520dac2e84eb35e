"""Experiments as a part of a master: their routes and what they stand on."""

from __future__ import annotations

from clutch.master.parts import Part
from clutch.workloads.experiment.routes import checkpoints, experiments, run, trials
from clutch.workloads.experiment.service.service import ExperimentService


def experiments_part(service: ExperimentService) -> Part:
    routes = [*experiments.ROUTES, *trials.ROUTES, *checkpoints.ROUTES, *run.ROUTES]
    return Part(name="experiments", value=service, routes=routes, lead=service.lead)
