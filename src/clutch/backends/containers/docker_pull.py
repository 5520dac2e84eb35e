"""Getting an image onto the node, by its policy: *missing* pulls what is not here, *always* asks the registry each
time, *never* takes what is here. Standard library only.

It waits only through its caller, who hears orders meanwhile and raises when one is to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from clutch.backends.containers.docker_http import Engine, Refused
from clutch.backends.containers.docker_images import Progress, auth_header, pull_path
from clutch.backends.containers.docker_verdict import REFUSED, Verdict, unpulled

SAY_EVERY_S = 0.5
PUT = "Put it there, or let it be pulled."


class Image(NamedTuple):
    name: str
    policy: str
    auth: str = ""
    """``user:password`` of its registry."""


def get_image(
    engine: Engine, image: Image, wait: Callable[[int], None], say: Callable[[str, float], None]
) -> Verdict | None:
    """None when it is here; else why it is not. ``wait`` returns when a descriptor can be read."""
    name = image.name
    if image.policy != "always":
        try:
            engine.ask("GET", f"/images/{name}/json")
            return None
        except Refused as refused:
            if refused.status != 404:
                return Verdict(127, REFUSED, f"its image {name}: {refused}")
    if image.policy == "never":
        return Verdict(127, REFUSED, f"its image {name} is not on this node, and it may not be pulled. {PUT}")
    progress = Progress(name)
    say(progress.text(), 0.0)
    try:
        stream = engine.open("POST", pull_path(name), headers=auth_header(name, image.auth), patience=wait)
    except Refused as refused:
        return unpulled(name, str(refused))
    try:
        while not stream.ended:
            if not stream.waiting:
                wait(stream.fileno())
            progress.add(stream.read())
            say(progress.text(), SAY_EVERY_S)
        progress.end()
    finally:
        stream.close()
    return unpulled(name, progress.error) if progress.error else None
