"""The master's HTTP API as one litestar app: every route file's ``ROUTES`` behind one guard and inside one envelope."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.exceptions.base_exceptions import LitestarDeprecationWarning
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import SkipValidation

from clutch.master.access.caller import Caller
from clutch.master.api import (
    access,
    agents,
    audit,
    authority,
    code,
    docs,
    enrol,
    events,
    groups,
    health,
    home,
    info,
    login,
    metrics,
    nodes,
    output,
    pools,
    prometheus,
    proxy,
    push,
    queue,
    quotas,
    secrets,
    tasks,
    tokens,
    usage,
    users,
    workspaces,
)  # fmt: skip
from clutch.master.api.envelope import Envelope, note_failure
from clutch.master.api.errors import answer_error
from clutch.master.api.guard import check_routes, make_guard
from clutch.master.parts import Part
from clutch.master.prometheus import Traffic
from clutch.master.services import Services
from clutch.wire.version import VERSION

BODY_MAX_BYTES = 8 * 2**20
"""Of a body that is read whole. Uploads are streamed and have a limit of their own."""

FILES = (
    health, docs, info, tasks, output, queue, nodes, pools, events, code, prometheus, login, access, users, groups,
    workspaces, tokens, secrets, quotas, audit, usage, enrol, agents, authority, push, proxy, metrics, home,
)  # fmt: skip
"""Every file with routes."""


class App(Litestar):
    """A litestar app inside an ``Envelope``."""

    def cut_short(self) -> None:
        """Answer whoever still waits: this master ends."""
        self.state.envelope.cut_short()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
        else:
            await self.state.envelope.carry(super().__call__, scope, receive, send)


class Unrouted(Router):
    """Where litestar's own pages about the API go: nowhere. They load their scripts from the internet; see ``docs``."""

    def register(self, value: Any) -> list[Any]:
        return []


def _openapi() -> OpenAPIConfig:
    bearer = SecurityScheme(type="http", scheme="bearer")
    return OpenAPIConfig(
        title="Clutch",
        version=VERSION,
        description="One cluster for experiments, notebooks and reinforcement learning.",
        components=Components(security_schemes={"token": bearer}),
        security=[{"token": []}],
        use_handler_docstrings=True,
        openapi_router=Unrouted(path="/", route_handlers=[]),
    )


_UNCHECKED: Any = SkipValidation[object]
"""The type of what is handed to routes as it is."""


def all_routes() -> list[Any]:
    """Every route of every file."""
    return [route for file in FILES for route in file.ROUTES]


def _give(value: Any) -> Any:
    async def give() -> Any:
        return value

    return give


def make_app(services: Services, routes: list[Any] | None = None, parts: Sequence[Part] = ()) -> Litestar:
    """The app that answers for these services. ``BrokenInvariant`` when a route does not say what it needs."""

    async def give_services() -> Any:
        return services

    async def give_caller(scope: Any) -> Any:
        return scope["state"]["caller"]

    async def keep_failure(error: Exception, scope: Any) -> None:
        note_failure(error, scope)

    given = {"services": Provide(give_services), "caller": Provide(give_caller)}
    types: dict[str, Any] = {"Services": SkipValidation[Services], "Caller": SkipValidation[Caller]}
    for part in parts:
        given[part.name] = Provide(_give(part.value))
        types[type(part.value).__name__] = _UNCHECKED
    traffic = Traffic()
    traffic.watch(services.loop)
    with warnings.catch_warnings():
        # Litestar 2 warns of markers that its version 3 will want in signatures (FromPath, JSONBody)
        warnings.simplefilter("ignore", LitestarDeprecationWarning)
        app = App(
            route_handlers=[
                *(all_routes() if routes is None else routes),
                *(route for part in parts for route in part.routes),
            ],
            guards=[make_guard(services.access)],
            dependencies=given,
            signature_namespace=types,
            exception_handlers={Exception: answer_error},
            after_exception=[keep_failure],
            openapi_config=_openapi(),
            logging_config=None,
            request_max_body_size=BODY_MAX_BYTES,
        )
    app.state.envelope = Envelope(services, traffic)
    app.state.traffic = traffic
    app.state.services = services
    check_routes(app.routes)
    return app
