"""A launcher of your own, in the manner of mpirun: a hostfile, and OMPI_COMM_WORLD_* for every rank.

    clutch run --slots 4 --launch mpi_like:MpiLike -- python hello.py        (in this folder, on a node with four slots)

With ``--slots 2 --count 2`` there are two on each of two nodes. Or in an experiment's configuration:

    entrypoint: [python, hello.py]
    launch: {class: "mpi_like:MpiLike"}

``launch`` is called once on each node, after all members have met, and answers with what is executed there instead of
the command. It may write files; it starts nothing itself. Here ``local_run.py`` starts the ranks of this node; with a
real MPI it would be ``mpirun`` on the first node and a daemon on the others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from clutch.runtime.launch.base import Launch, rank_words
from clutch.runtime.launch.world import world_of
from clutch.wire.push import Roster


class MpiLike:
    """Keyword arguments come from ``launch: {class: ..., options: {...}}``."""

    def __init__(self, hostfile: str = "hostfile") -> None:
        self._hostfile = Path(hostfile).absolute()

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        if roster is None:
            return Launch(argv, environment)
        world = world_of(roster)
        lines = [f"{peer.addresses[0]} slots={max(1, len(peer.slots))}\n" for peer in roster.peers]
        self._hostfile.write_text("".join(lines))
        words = (sys.executable, "local_run.py", str(world.first), str(world.local_size), str(world.size))
        told = {**environment, "MPI_LIKE_HOSTFILE": os.fspath(self._hostfile)}
        return Launch((*words, *rank_words(), *argv), told)  # rank_words: what a rank prints is marked with its number
