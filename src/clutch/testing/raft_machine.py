"""One simulated machine that runs the production member: its disk, its clock, its application, its deaths.

Everything a machine does is one event of the world's agenda; ``guarded`` runs it, turns a lost power into a death, and
looks at the member afterwards. A callback that belongs to an earlier life is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from clutch.consensus import identity, snapshots
from clutch.consensus.member import Member
from clutch.consensus.opening import Founding, Nature, open_log
from clutch.testing.disk import Disk
from clutch.testing.raft_checks import Violation
from clutch.testing.raft_disk import Crashed, SimulatedFiles
from clutch.wire.errors import ClutchError, DiskFull
from clutch.wire.raft import Address, Configuration, Entry, Header, PeerMessage, RaftId, Refusal, SnapshotMeta

if TYPE_CHECKING:
    from clutch.testing.raft_world import RaftWorld

_peer_encoder = msgspec.msgpack.Encoder()
_peer_decoder: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)


class Machine:
    """A machine and the life of a member on it."""

    def __init__(self, world: RaftWorld, name: str, configuration: Configuration) -> None:
        self.world = world
        self.name = name
        self.id = RaftId(world.generation, name, 1)
        self.configuration = configuration
        chance = world.world.chance(f"disk/{name}")
        self.files = SimulatedFiles(Disk(chance))
        self.member: Member | None = None
        self.life = 0
        self.tick_s = world.settings.tick_s * world.world.chance("clocks").uniform(0.7, 1.4)
        self.sync_s = 0.0
        self.slow_s = 0.0
        self.wants_up = True
        self.application: list[tuple[int, str]] = []
        self.upto = 0
        self.deaths = 0
        self._met: dict[Header, bool] = {}
        self._acquaintances: identity.Acquaintances | None = None
        self._header = Header(world.group, self.id, "")

    # ----------------------------------------------------------------------------------------- life and death

    def start(self) -> None:
        """Power on: read the disk and join in."""
        if self.member is not None:
            return
        self.life += 1
        self.application, self.upto = [], 0
        self.wants_up = True
        self._met = {}
        self.guarded(self._boot)
        self._schedule_tick()

    def _boot(self) -> None:
        world = self.world
        founding = Founding(f"{self.name}-{self.id.incarnation}-{self.life}", self.configuration)
        nature = Nature(world.settings.limits, world.world.chance(f"raft/{self.name}"), world.rules)
        log = open_log(self.files, world.group, self.id, founding, world.settings.limits)
        self._header = Header(world.group, self.id, log.identity.birth)
        self._acquaintances = identity.Acquaintances(self.files, world.group, self.id.generation)
        world.checks.forget(self.id)
        self.member = world.member_type(log, self, nature)
        world.network.attach(self.name, self._deliver)
        world.tell("start", self.name, str(self.id), f"last {self.member.raft.state.log.last_index}")
        self.member.pump()

    def die(self, why: str) -> None:
        """Power off: memory is gone, and so may be what was not synced."""
        self.world.tell("die", self.name, why)
        self.member = None
        self.life += 1
        self.deaths += 1
        self.files.lose_power()
        self.world.network.detach(self.name)
        self.world.on_death(self)

    def lose_disk(self) -> None:
        """It comes back empty, and therefore as another: its next incarnation, which must be let in as a learner."""
        if self.member is not None:
            self.die("its disk is gone")
        self.files = SimulatedFiles(Disk(self.world.world.chance(f"disk/{self.name}")))
        self.id = msgspec.structs.replace(self.id, incarnation=self.id.incarnation + 1)
        self.configuration = Configuration()

    def guarded(self, action: Callable[[], None]) -> None:
        """Run a piece of this machine's work, and look at what it led to."""
        try:
            action()
        except Crashed:
            self.die("power lost")
            return
        except DiskFull:
            self.die("disk full")
            return
        except ClutchError as error:
            if error.blame == "bug" or error.code == "corrupt":  # simulated disks tear, but they never rot
                raise Violation(f"{self.id} found itself broken: {error}") from error
        member = self.member
        if member is None:
            return
        if member.halted is not None:
            self.world.tell("halt", self.name, str(member.halted))
            self.die(f"halted: {member.halted.code}")
            return
        self.world.look(member)

    def _schedule_tick(self) -> None:
        life = self.life
        self.world.world.after(self.tick_s, lambda: self._tick(life))

    def _tick(self, life: int) -> None:
        if life != self.life or self.member is None:
            return
        self.guarded(self.member.tick)
        if life == self.life:
            self._schedule_tick()

    # --------------------------------------------------------------------------------------------- messages

    def _deliver(self, sender: str, packet: tuple[Header, PeerMessage]) -> None:
        if self.slow_s:
            life = self.life
            self.world.world.after(self.slow_s, lambda: self._handle(life, packet))
        else:
            self._handle(self.life, packet)

    def _handle(self, life: int, packet: tuple[Header, PeerMessage]) -> None:
        if life != self.life or self.member is None:
            return
        self.guarded(lambda: self._take(*packet))

    def _take(self, header: Header, message: PeerMessage) -> None:
        member = self.member
        assert member is not None and self._acquaintances is not None
        if header not in self._met:
            try:
                self._acquaintances.admit(header)
                self._met[header] = True
            except identity.REFUSALS as error:
                self._met[header] = False
                self.world.tell("refuse", self.name, str(error))
                view = error.view()
                refusal = Refusal(header.group, self.id, header.sender, 0, header.birth, view)
                self.world.network.send(self.name, header.sender.member, (self._header, refusal))
        if self._met[header]:
            member.receive(message)
            member.pump()

    # -------------------------------------------------------------------------------------- the member's ports

    def send(self, message: PeerMessage) -> bool:
        self.files.crash_point()
        if self.world.settings.encode:
            message = _peer_decoder.decode(_peer_encoder.encode(message))
        self.world.network.send(self.name, message.receiver.member, (self._header, message))
        return True

    def sync(self, name: str, size_bytes: int, done: Callable[[], None]) -> None:
        if not self.sync_s:
            self.files.sync(name)
            done()
            return
        life = self.life

        def later() -> None:
            if life == self.life and self.member is not None:
                self.guarded(lambda: (self.files.sync(name), done())[0])  # type: ignore[func-returns-value]

        self.world.world.after(self.sync_s, later)

    def applied(self, entries: list[Entry], upto: int) -> None:
        if upto <= self.upto:
            raise Violation(f"{self.id} applies up to {upto} after {self.upto}")
        self.world.checks.look_at_apply(self.id, entries)
        self.application.extend((e.index, e.key) for e in entries)
        self.upto = upto

    def restored(self, snapshot: SnapshotMeta) -> None:
        body = snapshots.body(self.files, snapshots.file_name(snapshot))
        self.application = msgspec.msgpack.decode(body, type=list[tuple[int, str]])
        self.upto = snapshot.index

    def configured(self, configuration: Configuration) -> None:
        self.world.tell("configured", self.name, " ".join(str(v) for v in configuration.voters))

    def introduced(self, addresses: tuple[Address, ...]) -> None:
        self.world.introductions += 1

    # ------------------------------------------------------------------------------------------- compaction

    def save_snapshot(self) -> None:
        """The application saves its state, if there is news."""
        self.guarded(self._save_snapshot)

    def _save_snapshot(self) -> None:
        member = self.member
        if member is None or self.upto <= member.raft.state.log.snapshot.index or self.upto != self._applied():
            return
        plan = member.plan_snapshot(self.upto)
        snapshots.write(self.files, plan.head(), [msgspec.msgpack.encode(self.application)])
        member.snapshot_saved(plan.meta, lambda outcome: None)
        member.pump()
        self.world.tell("snapshot", self.name, str(plan.meta.index))

    def _applied(self) -> int:
        assert self.member is not None
        return self.member.raft.state.log.applied
