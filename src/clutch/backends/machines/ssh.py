"""Machines that stand somewhere already: a list of hosts, reached by the system's own ``ssh``. A host is one machine.

``ssh`` asks nothing (BatchMode), believes only hosts it knows (StrictHostKeyChecking), gives up soon (ConnectTimeout).
Every word of a command is quoted; the enrolment token travels as input, never as an argument.

Which host an order goes to is noted before it is sent, so that a try whose answer was lost is repeated on that host. A
host that cannot be reached is neither free nor gone: its machine counts as it was when it was last seen, and a listing
that would have to guess is refused.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from contextlib import suppress
from pathlib import Path

import msgspec

from clutch.backends.machines.base import terminated
from clutch.backends.machines.site import Site
from clutch.backends.machines.ssh_scripts import LAUNCH, LIST, TERMINATE
from clutch.wire.errors import BadRequest, Unavailable
from clutch.wire.ids import PoolName
from clutch.wire.machines import Instance, MachineId, Order, SshHost, SshTemplate

CALL_S = 60.0
"""One call on one host takes at most so long, connecting included."""
AT_ONCE = 16
ANSWER_BYTES_MAX = 64 * 1024


class SshMachines:
    """A pool's hosts."""

    lag_s = 0.0

    def __init__(self, template: SshTemplate, site: Site) -> None:
        _check(template)
        self.template = template
        self.site = site
        self._hosts = {host.name: host for host in template.hosts}
        self._seen: dict[str, Instance | None] = {}
        """Each host as it was when it was last reached; None: free."""
        self._choosing = asyncio.Lock()
        self._calls = asyncio.Semaphore(AT_ONCE)
        site.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._notes = site.folder / "hosts.json"

    async def launch(self, order: Order) -> Instance:
        async with self._choosing:
            noted = self._noted().get(order.machine)
            if noted is not None and noted in self._hosts:
                return await self._start(self._hosts[noted], order)
            errors: list[str] = []
            for host in self.template.hosts:
                try:
                    found = await self._look(host)
                except Unavailable as error:
                    errors.append(f"{host.name}: {error.cause}")
                    continue
                if found is not None and found.machine != order.machine:
                    continue
                with suppress(_Taken):  # whatever else goes wrong here is tried again here: it may have begun
                    return await self._start(host, order)
        raise Unavailable(
            "no host is free" + (f" ({'; '.join(errors)})" if errors else ""),
            object=f"machine {order.machine}",
            next_step="Name more hosts, or let the pool have fewer machines (nodes_max).",
        )

    async def terminate(self, order: Order) -> None:
        known = self._noted().get(order.machine) or order.instance
        if known in self._hosts:
            await self._stop(self._hosts[known], order.machine)
        else:  # nothing was sent anywhere from here; should another master's try sit on a host that cannot be reached
            # now, it is a stray when that host returns
            async with asyncio.TaskGroup() as group:
                for host in self.template.hosts:
                    group.create_task(self._stop_if_reached(host, order.machine))
        self._note(order.machine, None)

    async def listing(self) -> list[Instance]:
        looks = [self._look_or_remember(host) for host in self.template.hosts]
        found = await asyncio.gather(*looks, return_exceptions=True)
        for failed in found:
            if isinstance(failed, BaseException):
                raise failed
        return [instance for instance in found if isinstance(instance, Instance)]

    async def close(self) -> None:
        """It holds nothing: every call is a process of its own that has ended."""

    # -- on one host ---------------------------------------------------------------------------------------------

    async def _start(self, host: SshHost, order: Order) -> Instance:
        self._note(order.machine, host.name)
        template, site = self.template, self.site
        agent = [*template.agent, *site.arguments(order.machine), *template.arguments]
        token = await asyncio.to_thread(site.token_file.read_bytes)
        said = await self._call(host, LAUNCH, [self._folder(), order.machine, order.pool, *agent], token)
        word, _, rest = said.partition(" ")
        if word == "running":
            instance = Instance(order.machine, host.name, order.pool, site.cluster, host.address or host.name)
            self._seen[host.name] = instance
            return instance
        if word != "failed":
            self._note(order.machine, None)
        if word == "ended":
            raise terminated(order)
        if word == "taken":
            raise _Taken("it is another machine already", object=f"host {host.name}")
        raise Unavailable(
            f"its agent did not start: {rest or said}",
            object=f"machine {order.machine} on host {host.name}",
            next_step=f"Read {self._folder()}/{order.machine}/agent.log there.",
        )

    async def _stop(self, host: SshHost, machine: MachineId) -> None:
        tries = str(round(self.template.stop_s * 10))
        said = await self._call(host, TERMINATE, [self._folder(), machine, tries], within_s=self.template.stop_s)
        if said != "gone":
            raise Unavailable(f"it could not be ended: {said}", object=f"machine {machine} on host {host.name}")
        seen = self._seen.get(host.name)
        if seen is not None and seen.machine == machine:
            self._seen[host.name] = None

    async def _stop_if_reached(self, host: SshHost, machine: MachineId) -> None:
        with suppress(Unavailable):
            await self._stop(host, machine)

    async def _look(self, host: SshHost) -> Instance | None:
        """The machine that a host is; None: it is free."""
        said = (await self._call(host, LIST, [self._folder()])).split()
        instance = None
        if said and said[0] in ("running", "dead"):
            name, pool = MachineId(said[1]), PoolName(said[2])
            address = host.address or host.name
            instance = Instance(name, host.name, pool, self.site.cluster, address, running=said[0] == "running")
        elif said != ["free"]:
            raise Unavailable(f"it answers {' '.join(said)!r}", object=f"host {host.name}")
        self._seen[host.name] = instance
        return instance

    async def _look_or_remember(self, host: SshHost) -> Instance | None:
        try:
            return await self._look(host)
        except Unavailable:
            if host.name not in self._seen:
                raise
            return self._seen[host.name]

    def _folder(self) -> str:
        return f"{self.template.folder.rstrip('/')}/{self.site.cluster}"

    async def _call(
        self, host: SshHost, script: str, words: list[str], given: bytes = b"", within_s: float = 0.0
    ) -> str:
        """What a script says on a host."""
        remote = " ".join(shlex.quote(word) for word in ["sh", "-c", script, "clutch", *words])
        async with self._calls:
            process = await self._begin(host, remote)
            try:
                async with asyncio.timeout(CALL_S + within_s):
                    said, complaint = await process.communicate(given)
            except TimeoutError:
                raise Unavailable(f"no answer within {CALL_S + within_s:g} s", object=f"host {host.name}") from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        if process.returncode != 0:
            lines = complaint[-ANSWER_BYTES_MAX:].decode(errors="replace").strip().splitlines()
            raise Unavailable(
                f"ssh ended with code {process.returncode}: {lines[-1] if lines else 'it says nothing'}",
                object=f"host {host.name}",
                next_step=f"Try {shlex.join([*self._ssh(host), 'true'])}.",
            )
        return said[-ANSWER_BYTES_MAX:].decode(errors="replace").strip()

    async def _begin(self, host: SshHost, remote: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(*self._ssh(host), remote, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise Unavailable(
                f"ssh cannot be started here: {error.strerror}",
                object=f"host {host.name}",
                next_step="Install an ssh client on the master's machine.",
            ) from error

    def _ssh(self, host: SshHost) -> list[str]:
        template = self.template
        words = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        words += ["-o", f"ConnectTimeout={template.connect_timeout_s}", "-o", "ServerAliveInterval=15"]
        words += ["-o", "ClearAllForwardings=yes", "-p", str(host.port)]
        if template.identity_file:
            words += ["-o", "IdentitiesOnly=yes", "-i", template.identity_file]
        if template.known_hosts:
            words += ["-o", f"UserKnownHostsFile={template.known_hosts}"]
        if host.user:
            words += ["-l", host.user]
        return [*words, "--", host.address or host.name]

    # -- which host an order went to -----------------------------------------------------------------------------

    def _noted(self) -> dict[MachineId, str]:
        try:
            return msgspec.json.decode(self._notes.read_bytes(), type=dict[MachineId, str])
        except FileNotFoundError:
            return {}

    def _note(self, machine: MachineId, host: str | None) -> None:
        notes = self._noted()
        before = dict(notes)
        notes.pop(machine, None)
        if host is not None:
            notes[machine] = host
        if notes == before:
            return
        aside = Path(f"{self._notes}.new")
        with aside.open("wb") as file:
            file.write(msgspec.json.encode(notes))
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self._notes)


class _Taken(Unavailable):
    """The host has become another machine meanwhile."""


def _check(template: SshTemplate) -> None:
    """``ssh`` would take a host that begins with a dash for an option."""
    names = [host.name for host in template.hosts]
    for host in template.hosts:
        words = (host.name, host.address or host.name, host.user or "root")
        plain = all(word and not word.startswith("-") and word.isprintable() and " " not in word for word in words)
        if not plain or not 0 < host.port < 65536:
            raise BadRequest(
                "this is no host that ssh could reach", object=f"host {host.name!r}", path="machines.hosts"
            )
    if not names or len(names) != len(set(names)):
        raise BadRequest(
            "each host has a name of its own, and there is at least one",
            object="machines of way ssh",
            path="machines.hosts",
            next_step="Name every host once.",
        )
