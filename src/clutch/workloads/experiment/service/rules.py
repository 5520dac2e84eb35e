"""Output rules: lines of a trial's output that say something about the trial, or about the node it runs on.

Lines are read from the store behind each commit, and again from the beginning when an agent opens a stream at a master
that has not seen it. The lane answers only when the match has been told, so a rule that forbids restarts acts before
the exit rules decide. Patterns run in processes of their own; one that takes too long is dropped for that trial, with a
line in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from clutch.master.output.packing import unpack
from clutch.master.output.patterns import Patterns
from clutch.master.output.records import STREAMS, Key, Span
from clutch.master.services import Services
from clutch.wire.errors import ClutchError, NotFound
from clutch.wire.experiment_words import Matched
from clutch.wire.experiments import KIND, OutputRule, trial_of
from clutch.wire.ids import Fence, MemberId
from clutch.wire.link import OutputCommitted
from clutch.wire.output import LINE_MAX_BYTES
from clutch.workloads.experiment.service.own import spec_in
from clutch.workloads.experiment.service.telling import Teller

PIECE_BYTES = 512 * 2**10
SHOWN_MAX = 500
"""Characters of a line that are kept with a match."""
WATCHED_MAX = 10_000
"""Incarnations whose place is remembered, the newest; a forgotten one is read from its beginning again."""

log = structlog.get_logger("clutch.experiments")


class _Watched:
    """How far one incarnation's output was looked at, and which rules may still match."""

    def __init__(self, rules: tuple[OutputRule, ...]) -> None:
        self.positions = dict.fromkeys(STREAMS, 0)
        self.rests: dict[str, bytes] = dict.fromkeys(STREAMS, b"")
        """The line under way at each position."""
        self.rules = list(rules)
        self.turn = asyncio.Lock()


class OutputRules:
    """``watch`` is one of the output lane's watchers."""

    def __init__(self, services: Services, teller: Teller) -> None:
        self._services = services
        self._teller = teller
        self._patterns = Patterns(workers=2, allowed_s=2)
        self._watched: dict[tuple[MemberId, Fence], _Watched] = {}

    async def close(self) -> None:
        await self._patterns.close()

    async def watch(self, committed: Sequence[OutputCommitted]) -> None:
        """More of these is durable."""
        for one in committed:
            found = trial_of(one.member.task)
            rules = self._rules(found[0]) if found is not None else ()
            if found is None or not rules:
                continue
            watched = self._place(one.member, one.fence, rules)
            async with watched.turn:
                await self._look(found[0], one, watched)
            if one.done:
                self._watched.pop((one.member, one.fence), None)

    def _rules(self, experiment: str) -> tuple[OutputRule, ...]:
        workload = self._services.loop.state.workloads.get(experiment)
        if workload is None or workload.kind != KIND:
            return ()
        return spec_in(workload.own).output_rules

    def _place(self, member: MemberId, fence: Fence, rules: tuple[OutputRule, ...]) -> _Watched:
        watched = self._watched.pop((member, fence), None) or _Watched(rules)
        self._watched[member, fence] = watched
        if len(self._watched) > WATCHED_MAX:
            del self._watched[next(iter(self._watched))]
        return watched

    async def _look(self, experiment: str, one: OutputCommitted, watched: _Watched) -> None:
        for stream, end in zip(STREAMS, (one.stdout, one.stderr), strict=True):
            while watched.rules and watched.positions[stream] < end:
                lines = await self._next_lines(Key(one.member, one.fence, stream), end, watched)
                await self._match(experiment, one, watched, lines)
            rest = watched.rests[stream]
            if one.done and rest and watched.rules:
                watched.rests[stream] = b""
                await self._match(experiment, one, watched, rest)

    async def _next_lines(self, key: Key, end: int, watched: _Watched) -> bytes:
        """Whole lines behind the place that was looked at, about a piece of them; a gap ends the line before it."""
        stream = key.stream
        states = {s.key: s for s in await self._services.output.store.states([(key.member, key.fence)])}
        if key not in states:  # forgotten meanwhile
            watched.positions[stream] = end
            return b""
        span = Span(states[key].id, watched.positions[stream], end, limit_bytes=PIECE_BYTES)
        data = watched.rests[stream]
        rows = await self._services.output.store.segments(span)
        for row in rows:
            if row.kind.is_gap:
                data += b"\n" if data else b""
            else:
                body, _ = await asyncio.to_thread(unpack, row)
                data += body[max(watched.positions[stream] - row.start, 0) :]
            watched.positions[stream] = row.end
        if not rows:
            watched.positions[stream] = end
        whole, newline, rest = data.rpartition(b"\n")
        if len(rest) > LINE_MAX_BYTES:  # a line without an end is looked at as far as it goes
            whole, newline, rest = data, b"\n", b""
        watched.rests[stream] = rest
        return whole if newline else b""

    async def _match(self, experiment: str, one: OutputCommitted, watched: _Watched, lines: bytes) -> None:
        if not lines:
            return
        for rule in list(watched.rules):
            try:
                numbers = await self._patterns.matching(rule.pattern, False, lines)
            except ClutchError as error:
                watched.rules.remove(rule)
                log.warning("an output rule is dropped", rule=rule.name, task=one.member.task, error=str(error))
                continue
            if numbers:
                watched.rules.remove(rule)  # it has said what it says of this start
                line = lines.split(b"\n")[numbers[0]].decode(errors="replace").rstrip("\r")[:SHOWN_MAX]
                await self._tell(experiment, one, rule, line)

    async def _tell(self, experiment: str, one: OutputCommitted, rule: OutputRule, line: str) -> None:
        member = self._services.loop.state.members.get(one.member)
        node = member.placement.node if member is not None and member.placement is not None else ""
        said = Matched(task=one.member.task, epoch=one.fence.epoch, node=node, rule=rule.name, line=line)
        try:
            await self._teller.tell(experiment, said, f"output of {one.member}")
        except NotFound:
            log.info("a rule matched after its experiment's end", task=one.member.task, rule=rule.name)
