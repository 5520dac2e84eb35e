"""Every operation on models, templates, defaults and webhooks, as a value. Pure."""

from __future__ import annotations

from typing import Any

from clutch.sdk.call import Call, delete, get, patch, path, post, put
from clutch.wire.api import Page
from clutch.wire.library import (
    AliasView,
    ConfigDetail,
    Delivery,
    MadeWebhook,
    ModelChange,
    ModelView,
    NewModel,
    NewWebhook,
    PutConfig,
    RegisterVersion,
    SetAlias,
    TemplateView,
    VersionChange,
    VersionView,
    WebhookChange,
    WebhookView,
)

TEST_S = 60.0

# -- models -------------------------------------------------------------------------------------------------------


def list_models(**filters: Any) -> Call[Page[ModelView]]:
    """Filters: ``workspace``, ``label``, ``begins``, ``archived``; and ``limit``, ``after``."""
    return get(("models",), Page[ModelView], filters)


def create_model(workspace: str, model: NewModel) -> Call[ModelView]:
    return post(("workspaces", workspace, "models"), ModelView, model)


def get_model(workspace: str, model: str) -> Call[ModelView]:
    """By its name or a beginning that only it has."""
    return get(("workspaces", workspace, "models", model), ModelView)


def change_model(workspace: str, model: str, change: ModelChange) -> Call[ModelView]:
    return patch(("workspaces", workspace, "models", model), ModelView, change)


def delete_model(workspace: str, model: str) -> Call[None]:
    return delete(("workspaces", workspace, "models", model))


def list_versions(workspace: str, model: str, **filters: Any) -> Call[Page[VersionView]]:
    return get(("workspaces", workspace, "models", model, "versions"), Page[VersionView], filters)


def register_version(workspace: str, model: str, version: RegisterVersion) -> Call[VersionView]:
    """Not repeatable: asked twice, there are two versions."""
    return post(("workspaces", workspace, "models", model, "versions"), VersionView, version)


def get_version(workspace: str, model: str, version: str) -> Call[VersionView]:
    """By its number, an alias, or ``latest``; see ``wire.library.split_version``."""
    return get(("workspaces", workspace, "models", model, "versions", version), VersionView)


def change_version(workspace: str, model: str, version: str, change: VersionChange) -> Call[VersionView]:
    return patch(("workspaces", workspace, "models", model, "versions", version), VersionView, change)


def delete_version(workspace: str, model: str, number: int) -> Call[None]:
    return delete(("workspaces", workspace, "models", model, "versions", str(number)))


def set_alias(workspace: str, model: str, alias: str, asked: SetAlias) -> Call[AliasView]:
    return put(("workspaces", workspace, "models", model, "aliases", alias), AliasView, asked)


def delete_alias(workspace: str, model: str, alias: str) -> Call[None]:
    return delete(("workspaces", workspace, "models", model, "aliases", alias))


# -- templates and defaults ---------------------------------------------------------------------------------------


def list_templates(**filters: Any) -> Call[Page[TemplateView]]:
    """Filters: ``workspace``; and ``limit``, ``after``."""
    return get(("templates",), Page[TemplateView], filters)


def get_template(workspace: str, template: str) -> Call[ConfigDetail]:
    """By its name or a beginning that only it has."""
    return get(("workspaces", workspace, "templates", template), ConfigDetail)


def put_template(workspace: str, template: str, config: PutConfig) -> Call[ConfigDetail]:
    return put(("workspaces", workspace, "templates", template), ConfigDetail, config)


def delete_template(workspace: str, template: str) -> Call[None]:
    return delete(("workspaces", workspace, "templates", template))


def get_defaults(workspace: str = "") -> Call[ConfigDetail]:
    """Of a workspace; empty: of the cluster."""
    return get(_defaults(workspace), ConfigDetail)


def put_defaults(workspace: str, config: PutConfig) -> Call[ConfigDetail]:
    return put(_defaults(workspace), ConfigDetail, config)


def delete_defaults(workspace: str) -> Call[None]:
    return delete(_defaults(workspace))


def _defaults(workspace: str) -> tuple[str, ...]:
    return ("workspaces", workspace, "defaults") if workspace else ("defaults",)


# -- webhooks -----------------------------------------------------------------------------------------------------


def list_webhooks(**filters: Any) -> Call[Page[WebhookView]]:
    """Filters: ``over`` (a scope); and ``limit``, ``after``."""
    return get(("webhooks",), Page[WebhookView], filters)


def create_webhook(webhook: NewWebhook) -> Call[MadeWebhook]:
    return post(("webhooks",), MadeWebhook, webhook)


def get_webhook(scope: str, name: str) -> Call[WebhookView]:
    """By its name or a beginning that only it has."""
    return get(("webhooks", scope, name), WebhookView)


def change_webhook(scope: str, name: str, change: WebhookChange) -> Call[WebhookView]:
    return patch(("webhooks", scope, name), WebhookView, change)


def delete_webhook(scope: str, name: str) -> Call[None]:
    return delete(("webhooks", scope, name))


def test_webhook(scope: str, name: str) -> Call[Delivery]:
    """Send a sample now, and hear how it went."""
    return Call(method="POST", path=path("webhooks", scope, name, "test"), answer=Delivery, answer_s=TEST_S)


def list_deliveries(scope: str, name: str, **filters: Any) -> Call[Page[Delivery]]:
    return get(("webhooks", scope, name, "deliveries"), Page[Delivery], filters)
