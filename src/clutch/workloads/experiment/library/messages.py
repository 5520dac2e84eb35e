"""What is said to webhooks: the body of a message, plain or as Slack shows it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from clutch.wire.experiment_words import ExperimentNews
from clutch.wire.library import MATCHED, WebhookFormat, WebhookMessage, WebhookView

_COLOURS = {"completed": "#2eb67d", "failed": "#e01e5a", "cancelled": "#ecb22e", "paused": "#36c5f0"}


def body_of(view: WebhookView, change: ExperimentNews, token: str, *, test: bool = False) -> bytes:
    if view.format is WebhookFormat.SLACK:
        return msgspec.json.encode(slack_of(change, test=test))
    fields = {name: getattr(change, name) for name in ExperimentNews.__struct_fields__ if name != "webhooks"}
    return msgspec.json.encode(WebhookMessage(id=token, webhook=view.name, test=test, **fields))


def slack_of(change: ExperimentNews, *, test: bool = False) -> dict[str, Any]:
    """What Slack shows: a line for the notification, and the facts beneath it."""
    name = escaped(change.name or change.experiment)
    line = f"{'Test: ' if test else ''}Experiment {name} ({escaped(change.experiment)})"
    if change.event == MATCHED:
        line += f": trial {change.trial} printed what rule {escaped(change.rule)} looks for"
    else:
        line += f" is {escaped(change.state)}"
    facts = [("Workspace", change.workspace), ("Project", change.project), ("Owner", change.owner)]
    fields = [{"type": "mrkdwn", "text": f"*{title}*\n{escaped(value)}"} for title, value in facts if value]
    blocks: list[dict[str, Any]] = [{"type": "section", "text": {"type": "mrkdwn", "text": line}}]
    if fields:
        blocks[0]["fields"] = fields
    if change.detail:
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": escaped(change.detail)[:2000]}]})
    colour = "#ecb22e" if change.event == MATCHED else _COLOURS.get(change.state, "#888888")
    return {"text": line, "attachments": [{"color": colour, "blocks": blocks}]}


def escaped(text: str) -> str:
    """A text in which Slack finds no markup of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
