"""A network that delays, loses, duplicates, reorders and partitions, as the world's chance has it.

Hosts are names; ``machine/process`` shares the links of ``machine``. A message is any value; it is handed to the
receiver's ``deliver`` as it is, so senders pass frozen values (or bytes). Cuts are one-way: a partition is two of them.
A message already under way when its link is cut is lost, as is one to a host that is down when it would arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from clutch.testing.world import World


class Weather(msgspec.Struct, frozen=True):
    """How bad the network is. Chances are per message; delays in seconds, drawn evenly between the two."""

    delay_min_s: float = 0.0005
    delay_max_s: float = 0.005
    loss: float = 0.0
    duplication: float = 0.0
    straggling: float = 0.0
    """The chance that a message takes ten times the longest delay, so that later ones overtake it."""


FAIR = Weather()
FOUL = Weather(delay_min_s=0.0005, delay_max_s=0.05, loss=0.02, duplication=0.02, straggling=0.02)


class Network:
    """Who can reach whom, and how well."""

    def __init__(self, world: World, weather: Weather = FAIR) -> None:
        self.world = world
        self.weather = weather
        self.sent = 0
        self.lost = 0
        self._chance = world.chance("network")
        self._receivers: dict[str, Callable[[str, Any], None]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._closed = False

    def close(self) -> None:
        """From now on nothing is carried any more."""
        self._closed = True

    def attach(self, host: str, deliver: Callable[[str, Any], None]) -> None:
        """From now on ``deliver(sender, message)`` is called for what reaches this host."""
        self._receivers[host] = deliver

    def detach(self, host: str) -> None:
        """The host is down: what would reach it is lost."""
        self._receivers.pop(host, None)

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts.add((sender, receiver))

    def mend(self, sender: str, receiver: str) -> None:
        self._cuts.discard((sender, receiver))

    def isolate(self, host: str, others: Iterable[str]) -> None:
        """Cut a host off from others, both ways."""
        for other in others:
            self.cut(host, other)
            self.cut(other, host)

    def mend_all(self) -> None:
        self._cuts.clear()

    def is_cut(self, sender: str, receiver: str) -> bool:
        return bool(self._cuts) and (sender.partition("/")[0], receiver.partition("/")[0]) in self._cuts

    def send(self, sender: str, receiver: str, message: Any) -> None:
        """Put a message under way. It arrives later, more than once, or never."""
        if self._closed:
            return
        self.sent += 1
        chance, weather = self._chance, self.weather
        copies = 2 if weather.duplication and chance.random() < weather.duplication else 1
        for _ in range(copies):
            delay = chance.uniform(weather.delay_min_s, weather.delay_max_s)
            if weather.straggling and chance.random() < weather.straggling:
                delay += 10 * weather.delay_max_s
            if self.is_cut(sender, receiver) or (weather.loss and chance.random() < weather.loss):
                self.lost += 1
                continue
            self.world.after(delay, lambda: self._arrive(sender, receiver, message))

    def _arrive(self, sender: str, receiver: str, message: Any) -> None:
        deliver = self._receivers.get(receiver)
        if deliver is None or self.is_cut(sender, receiver):
            self.lost += 1
            return
        deliver(sender, message)
