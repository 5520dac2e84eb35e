"""What is kept beside experiments, for longer than any of them: models, templates, defaults, webhooks.

And how a webhook's message is signed, so that the master that sends it and whoever receives it agree.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from clutch.wire.experiment_api import ConfigProblem
from clutch.wire.experiments import ExperimentState
from clutch.wire.push import Asked

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
LATEST = "latest"
"""The newest version of a model; what a bare name means, and no alias."""
TIMESTAMP_HEADER = "X-Clutch-Timestamp"
SIGNATURE_HEADER = "X-Clutch-Signature"
DELIVERY_HEADER = "X-Clutch-Delivery"
"""The same for every try of one message to one webhook: whoever has seen it may drop it."""
SIGNATURE_PREFIX = "sha256="

# -- models -------------------------------------------------------------------------------------------------------


class NewModel(Asked, frozen=True):
    name: str
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class ModelChange(Asked, frozen=True):
    """What is None stays. What is archived takes no new version."""

    description: str | None = None
    notes: str | None = None
    labels: tuple[str, ...] | None = None
    metadata: dict[str, Any] | None = None
    archived: bool | None = None


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    workspace: str
    name: str
    description: str
    notes: str
    labels: tuple[str, ...]
    metadata: dict[str, Any]
    archived: bool
    versions: int
    """How many there are."""
    latest: int
    """The number of the newest one; 0: there is none."""
    aliases: dict[str, int]
    """alias -> the number of the version that it means."""
    created_by: str
    created_at: float
    changed_at: float


class RegisterVersion(Asked, frozen=True):
    """A checkpoint as the next version of a model; from then on the model holds it."""

    checkpoint: str
    name: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Laid over ``validation``, which is the checkpoint's own."""
    aliases: tuple[str, ...] = ()
    """That shall mean this version, in the same moment in which it appears."""


class VersionChange(Asked, frozen=True):
    """What is None stays."""

    name: str | None = None
    notes: str | None = None
    labels: tuple[str, ...] | None = None
    metrics: dict[str, float] | None = None


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    workspace: str
    model: str
    number: int
    """From 1; never given again, also not after the version is gone."""
    checkpoint: str
    experiment: str
    trial: str
    step: int
    name: str
    notes: str
    labels: tuple[str, ...]
    metrics: dict[str, float]
    aliases: tuple[str, ...]
    created_by: str
    created_at: float


class SetAlias(Asked, frozen=True):
    version: Number
    instead_of: Number | None = None
    """Only if it means this version now; 0: only if it means none. None: whatever it means."""


class AliasView(msgspec.Struct, frozen=True, kw_only=True):
    alias: str
    version: int
    before: int
    """What it meant before; 0: nothing."""


# -- templates and defaults ---------------------------------------------------------------------------------------


class PutConfig(Asked, frozen=True):
    """A configuration, or a part of one. ``source`` is its text as its author wrote it."""

    config: dict[str, Any]
    source: str = ""
    description: str = ""


class TemplateView(msgspec.Struct, frozen=True, kw_only=True):
    workspace: str
    name: str
    description: str
    changed_by: str
    changed_at: float


class ConfigDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A template (it has a name), or what a workspace or the cluster (its workspace is empty) lays beneath all."""

    workspace: str
    name: str = ""
    description: str = ""
    config: dict[str, Any]
    source: str
    changed_by: str
    changed_at: float
    notices: tuple[ConfigProblem, ...] = ()
    """Of the one who has just put it: old spellings, settings that mean nothing here."""


# -- webhooks -----------------------------------------------------------------------------------------------------


class WebhookFormat(StrEnum):
    PLAIN = "plain"  # a WebhookMessage
    SLACK = "slack"  # what Slack's incoming webhooks understand


ENDINGS: tuple[str, ...] = (ExperimentState.COMPLETED, ExperimentState.CANCELLED, ExperimentState.FAILED)
TOLD: tuple[str, ...] = (ExperimentState.ACTIVE, ExperimentState.PAUSED, *ENDINGS)
"""The states that webhooks hear of."""
MATCHED = "matched"
"""The trigger of webhooks that hear when a line of a trial matches an output rule; ``matched:RULE``: that rule only."""


class NewWebhook(Asked, frozen=True):
    name: str
    scope: str
    """``workspace:NAME``, or ``cluster`` for the experiments of all."""
    url: str
    secret: str = ""
    """What its messages are signed with; empty: one is made, and answered this once."""
    format: WebhookFormat = WebhookFormat.PLAIN
    triggers: tuple[str, ...] = ENDINGS
    """States of experiments, ``matched``, ``matched:RULE``."""
    experiments: tuple[str, ...] = ()
    """Only experiments with such a name; ``*`` and ``?`` as in file names. Empty: all."""
    on_request: bool = False
    """Only experiments whose configuration names this webhook, whatever their own name."""
    enabled: bool = True


class WebhookChange(Asked, frozen=True):
    """What is None stays."""

    url: str | None = None
    secret: str | None = None
    format: WebhookFormat | None = None
    triggers: tuple[str, ...] | None = None
    experiments: tuple[str, ...] | None = None
    on_request: bool | None = None
    enabled: bool | None = None


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook without its secret. ``url`` is whole for those who may change it, else scheme and host."""

    scope: str
    name: str
    url: str
    format: WebhookFormat
    triggers: tuple[str, ...]
    experiments: tuple[str, ...]
    on_request: bool
    enabled: bool
    created_by: str
    created_at: float
    waiting: int = 0
    """Messages that were not taken yet."""
    next_at: float = 0.0
    """When the first of them is tried (again)."""
    tries: int = 0
    """Of the message that was tried most often."""


class MadeWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """The only time the secret is seen."""

    secret: str
    view: WebhookView


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One try to deliver a message."""

    number: int
    id: str
    """As in its header: several tries of one message share it."""
    experiment: str
    state: str
    """What it told: the experiment's state, or ``matched:RULE``."""
    status: int
    """What the receiver answered; 0: nothing."""
    error: str
    """Empty: it was taken."""
    again: bool
    """Whether it is tried again."""
    took_s: float
    at: float


class WebhookMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a message, as JSON."""

    id: str
    webhook: str
    experiment: str
    name: str
    workspace: str
    project: str
    owner: str
    state: str
    detail: str
    at: float
    """When that was: messages may overtake each other."""
    test: bool = False
    event: str = "state"
    """``state``, or ``matched``: a trial printed what an output rule looks for, and ``detail`` is that line."""
    trial: int = 0
    rule: str = ""


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The value of the signature's header: HMAC-SHA256 over ``timestamp,body``."""
    return SIGNATURE_PREFIX + hmac.new(secret.encode(), timestamp.encode() + b"," + body, hashlib.sha256).hexdigest()


def is_signed(secret: str, timestamp: str, body: bytes, signature: str) -> bool:
    """Whether this is the signature; takes as long for a wrong one."""
    return hmac.compare_digest(sign(secret, timestamp, body).encode(), signature.encode())


# -- how a version is named ---------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def split_version(text: str) -> tuple[str, str]:
    """(model, version) of ``NAME``, ``NAME:3``, ``NAME:best``; the version of a bare name is ``latest``."""
    name, _, version = text.partition(":")
    return name, version or LATEST


def number_of(version: str) -> int | None:
    """The number a version was named by; None for an alias."""
    return int(version) if _NUMBER.fullmatch(version) else None
