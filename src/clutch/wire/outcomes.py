"""States and ends of things, as everybody names them."""

from __future__ import annotations

from enum import StrEnum


class NodeState(StrEnum):
    UNREPORTED = "unreported"  # this term has not heard from it, or work that should not be there still runs
    READY = "ready"  # may get work
    SUSPECT = "suspect"  # silent: keeps what it has, gets nothing new
    LOST = "lost"  # silent for too long: its work is elsewhere; its slots are out of the pool
    DRAINING = "draining"  # heard from, being emptied


class NodeWish(StrEnum):
    """What its operator wants of a node."""

    OPEN = "open"
    DRAIN = "drain"


class TaskState(StrEnum):
    QUEUED = "queued"  # waits for an allocation
    RUNNING = "running"  # has a live allocation
    RESTING = "resting"  # infrastructure failed it again and again: back in the queue when its rest is over
    PAUSED = "paused"  # waits for its user
    ENDED = "ended"  # history


class TaskWish(StrEnum):
    """What its user or controller wants of a task. Later ones outrank earlier ones, except that RUN undoes PAUSE."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"
    CANCEL = "cancel"
    KILL = "kill"


class AllocationState(StrEnum):
    PLACED = "placed"  # granted; members are starting
    RUNNING = "running"  # every member is up
    LEAVING = "leaving"  # asked to give everything back by its deadline
    ENDING = "ending"  # its verdict is known; what still runs is being ended
    FLUSHING = "flushing"  # all gone; the store catches up with their output and metrics
    ENDED = "ended"


class Verdict(StrEnum):
    """How an allocation went, before anybody's wishes are considered."""

    DONE = "done"  # exit 0, unasked or declared finished
    LEFT = "left"  # exit 0 after it acknowledged that it must leave
    EVICTED = "evicted"  # ended by us at the end of its window
    FAILED = "failed"  # the user's program failed: counts against max_restarts
    INFRASTRUCTURE = "infrastructure"  # node, agent or start failed: free
    KILLED = "killed"  # its user wanted it gone at once


class EndReason(StrEnum):
    DONE = "done"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    KILLED = "killed"
    FAILED = "failed"


class MemberState(StrEnum):
    RESTING = "resting"  # infrastructure failed it again and again: wanted when its rest is over
    WANTED = "wanted"  # waits for a place
    PLACED = "placed"  # its agent is told to start it
    STARTING = "starting"  # its agent is at it
    RUNNING = "running"
    LEAVING = "leaving"  # this member alone was asked to leave
    ENDING = "ending"  # its agent is told to end it
    EXITED = "exited"  # gone; its record tells how
    LOST = "lost"  # gone, or as good as; it may still run somewhere, fenced


class LeaseState(StrEnum):
    WANTED = "wanted"  # waits for slots
    HELD = "held"  # a cell runs on it
    LINGERING = "lingering"  # no cell runs; anyone who waits may have it
    RECLAIMING = "reclaiming"  # must be given back by its deadline
    ENDED = "ended"


class LeaseEnd(StrEnum):
    RELEASED = "released"  # its agent saw the slots free
    WITHDRAWN = "withdrawn"  # never granted: its cell gave up
    TIMED_OUT = "timed_out"  # never granted within its wait limit
    LOST = "lost"  # its member or node is gone


class MachineState(StrEnum):
    """A machine of a pool's provisioner; what its agent becomes is a node of the same name."""

    ASKED = "asked"  # its launch waits in the outbox
    LAUNCHED = "launched"  # its provider has it; its agent has not reported
    SERVING = "serving"  # its agent is a node of the pool
    STOPPING = "stopping"  # gets nothing new; its termination waits in the outbox
    GONE = "gone"  # its provider has it no more
