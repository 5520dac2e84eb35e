"""The library as a part of a master: its routes and what they stand on."""

from __future__ import annotations

from clutch.master.parts import Part
from clutch.workloads.experiment.library.opening import Library
from clutch.workloads.experiment.routes import models, templates, webhooks


def library_part(library: Library) -> Part:
    routes = [*models.ROUTES, *templates.ROUTES, *webhooks.ROUTES]
    return Part(name="library", value=library, routes=routes, lead=library.lead)
