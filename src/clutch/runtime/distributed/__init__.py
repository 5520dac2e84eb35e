"""Ranks of one training run speak with each other: collectives with deadlines, and agreement on when to stop."""

from clutch.runtime.distributed.agreement import Agreement
from clutch.runtime.distributed.group import Group

__all__ = ["Agreement", "Group"]
