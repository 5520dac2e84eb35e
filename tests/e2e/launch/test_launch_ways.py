"""Every way to start the ranks of a program, on two real nodes with 2 and 3 slots: all know who they are, and meet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launch_ground import TELL, Ground, texts, told

from clutch.wire.programs import AccelerateLaunch, Launching, OwnLaunch, PlainLaunch, RanksLaunch, TorchrunLaunch
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, RoleSpec

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_launcher"
REDUCE = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1 + dist.get_rank()])
dist.all_reduce(total)
rank, size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {size} local {os.environ['LOCAL_RANK']} sum {int(total)}", flush=True)
dist.destroy_process_group()
"""
ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.tensor([1 + accelerator.process_index]), "sum")
print(f"rank {accelerator.process_index} of {accelerator.num_processes} "
      f"local {accelerator.local_process_index} sum {int(total)}", flush=True)
accelerator.end_training()
"""
PYTHON = (sys.executable, "program.py")


def test_plain_starts_one_process_in_each_member(two_nodes: Ground) -> None:
    task = two_nodes.submit({"program.py": TELL}, PYTHON, PlainLaunch())
    assert task.wait(60).task.reason == "done", texts(task)
    found = told(task)
    assert [one["RANK"] for one in found] == ["0", "1"] and {one["WORLD_SIZE"] for one in found} == {"2"}
    assert sorted(one["CLUTCH_NODE"] for one in found) == ["a", "b"]
    assert [one["CROSS_RANK"] for one in found] == ["0", "1"] and {one["LOCAL_RANK"] for one in found} == {"0"}
    for one in found:
        assert sorted(one["peers"]) == [2, 3]
        assert one["CLUTCH_COMMS_PORT"] not in ("", one["MASTER_PORT"])
        assert one["CLUTCH_COMMS_ADDRESS"] == one["MASTER_ADDR"] != ""
    assert len({(one["MASTER_PORT"], one["CLUTCH_COMMS_PORT"]) for one in found}) == 1


def test_ranks_start_one_process_for_each_slot_of_unequal_nodes(two_nodes: Ground) -> None:
    task = two_nodes.submit({"program.py": TELL}, PYTHON, RanksLaunch())
    assert task.wait(60).task.reason == "done", texts(task)
    found = told(task)
    assert [one["RANK"] for one in found] == ["0", "1", "2", "3", "4"]
    first = len(str(found[0]["CLUTCH_SLOTS"]).split(","))
    assert found[0]["peers"] == [first, 5 - first], "the roster says how many slots each member has"
    for one in found:
        rank = int(str(one["RANK"]))
        member = int(rank >= first)
        assert one["LOCAL_RANK"] == str(rank - first * member)
        assert one["LOCAL_WORLD_SIZE"] == str(found[0]["peers"][member])  # type: ignore[index]
        assert (one["CROSS_RANK"], one["CROSS_SIZE"], one["WORLD_SIZE"]) == (str(member), "2", "5")
        assert one["CLUTCH_WORLD_RANK"] == str(member) and one["CLUTCH_WORLD_SIZE"] == "2", "these count members"
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"], one["CLUTCH_COMMS_PORT"]) for one in found}) == 1
    assert len({one["CLUTCH_NODE"] for one in found}) == 2
    marked = [text for text in texts(task) if '{"RANK"' in text]
    assert all(text.startswith(f"[rank={text.split(chr(34))[3]}] {{") for text in marked)


@pytest.mark.parametrize(
    ("launch", "program"),
    [
        pytest.param(RanksLaunch(), REDUCE, marks=pytest.mark.slow),
        (TorchrunLaunch(), REDUCE),
        pytest.param(TorchrunLaunch(arguments=("--log-dir=logs",), processes=2), REDUCE, marks=pytest.mark.slow),
        (AccelerateLaunch(), ACCELERATED),
    ],
    ids=["ranks", "torchrun", "torchrun-two-each", "accelerate"],
)
def test_ranks_of_two_nodes_reduce_together(two_nodes: Ground, launch: Launching, program: str) -> None:
    task = two_nodes.submit({"program.py": program}, (*PYTHON, "--", "--x_y=1"), launch)
    detail = task.wait(120)
    assert detail.task.reason == "done", "\n".join(texts(task))
    found = sorted(text for text in texts(task) if " sum " in text)
    size = 4 if launch == TorchrunLaunch(arguments=("--log-dir=logs",), processes=2) else 5
    total = sum(range(size + 1))
    assert [text.split(" local ")[0] for text in found] == [f"[rank={n}] rank {n} of {size}" for n in range(size)]
    assert all(text.endswith(f"sum {total}") for text in found)


def test_a_member_without_peers_has_ranks_too(two_nodes: Ground) -> None:
    roles = (RoleSpec(name="main", shape=Members(1, Resources(2, "artificial"))),)
    task = two_nodes.submit({"program.py": REDUCE}, PYTHON, RanksLaunch(), roles=roles)
    assert task.wait(90).task.reason == "done", "\n".join(texts(task))
    assert sorted(t for t in texts(task) if "sum" in t) == [
        f"[rank={n}] rank {n} of 2 local {n} sum 3" for n in range(2)
    ]
    task = two_nodes.submit({"program.py": TELL}, PYTHON, TorchrunLaunch(), roles=roles)
    assert task.wait(90).task.reason == "done", "\n".join(texts(task))
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"]) for one in told(task)] == [
        (str(n), str(n), "2") for n in range(2)
    ]
    alone = (RoleSpec(name="main", shape=Members(1, Resources())),)
    task = two_nodes.submit({"program.py": TELL}, PYTHON, RanksLaunch(), roles=alone)
    assert task.wait(60).task.reason == "done", texts(task)
    assert [(one["RANK"], one["WORLD_SIZE"]) for one in told(task)] == [("0", "1")], "at least one"


def test_a_launcher_of_the_users_own(two_nodes: Ground) -> None:
    files = {path.name: path.read_text() for path in EXAMPLE.glob("*.py")}
    files |= dict.fromkeys(("tempfile.py", "resource.py", "msgspec.py"), "raise SystemExit('not this one')")
    task = two_nodes.submit(files, (sys.executable, "hello.py"), OwnLaunch(spot="mpi_like:MpiLike"))
    assert task.wait(60).task.reason == "done", "\n".join(texts(task))
    found = sorted(text for text in texts(task) if "hello" in text)
    assert [text.split(",")[0] for text in found] == [f"[rank={n}] hello from {n} of 5" for n in range(5)]
    assert all("hostfile of 2 lines" in text for text in found)


COMMS = """
import os, sys
import zmq
if os.environ["RANK"] == "0":
    socket = zmq.Context.instance().socket(zmq.PULL)
    socket.bind(f"tcp://*:{os.environ['CLUTCH_COMMS_PORT']}")
    got = sorted(socket.recv() for _ in range(int(os.environ["WORLD_SIZE"])- 1))
    print("heard", b" ".join(got).decode(), flush=True)
else:
    socket = zmq.Context.instance().socket(zmq.PUSH)
    socket.connect(f"tcp://{os.environ['CLUTCH_COMMS_ADDRESS']}:{os.environ['CLUTCH_COMMS_PORT']}")
    socket.send(os.environ["RANK"].encode())
    socket.close(10_000)
    zmq.Context.instance().term()
"""


def test_the_port_for_members_is_the_chiefs_to_bind(two_nodes: Ground) -> None:
    task = two_nodes.submit({"program.py": COMMS}, PYTHON, RanksLaunch())
    assert task.wait(60).task.reason == "done", "\n".join(texts(task))
    assert "[rank=0] heard 1 2 3 4" in texts(task)
