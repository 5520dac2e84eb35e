"""A small transformer that learns to continue generated sentences, on as many processes as it is started with.

Alone:            python train.py
On two:           torchrun --nproc-per-node 2 train.py
On the cluster:   clutch experiment create search.yaml .

PyTorch's DistributedDataParallel adds up the gradients; every process reads its own part of each batch. The first one
saves, since all have the same weights; all of them stop at the same step when the run is asked to leave. The text is a
function of seed, step and rank, so a run that was interrupted learns the same as one that was not, up to the last
digits: PyTorch does not always add in the same order.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import clutch

DEFAULTS = {"learning_rate": 0.003, "width": 32, "layers": 2, "batch": 16, "steps": 120, "every": 40}
WORDS = {
    "who": "the cat|a dog|my aunt|the old king|nobody",
    "does": "sees|likes|follows|sings to|forgets",
    "whom": "the moon|a small boat|her brother|the rain|us",
    "when": "at night|every day|again|in spring|for ever",
}
LETTERS = [*sorted({letter for words in WORDS.values() for letter in words} - {"|"}), "."]
LENGTH = 48
HELD_OUT = -1
"""The step of the text that is never learnt."""


def main() -> None:
    torch.set_num_threads(1)  # so small a network is not faster with more
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        dist.init_process_group("gloo")
    with clutch.init(hparams=DEFAULTS, distributed="torch" if several else None) as run:
        hparams = run.hparams
        torch.manual_seed(run.seed)
        model = Model(hparams["width"], hparams["layers"])
        parallel = DistributedDataParallel(model) if several else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=hparams["learning_rate"])
        begun = run.restore()  # on all processes, the same
        step = load(Path(begun), model, optimizer) if begun is not None else 0
        while step < hparams["steps"]:
            loss = loss_of(parallel, text(run, step, hparams["batch"]))
            optimizer.zero_grad()
            loss.backward()  # here DDP makes the gradients the mean of all processes'
            optimizer.step()
            step += 1
            run.report(step, loss=loss.item(), all_ranks=True)  # the mean, reported once
            at_mark = step % hparams["every"] == 0 or step == hparams["steps"]
            if at_mark:
                with torch.no_grad():
                    held_out = loss_of(model, text(run, HELD_OUT, 4 * hparams["batch"]))
                run.validate(step, loss=held_out.item(), all_ranks=True)
            leaves = run.should_stop()  # the same answer on all processes
            if (at_mark or leaves) and run.rank == 0:
                with run.checkpoint(step) as folder:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                               folder / "training.pt")  # fmt: skip
            if leaves:
                break
    if several:
        dist.destroy_process_group()


def text(run: clutch.Run, step: int, count: int) -> torch.Tensor:
    """This process's part of the sentences of one step, as numbers."""
    draw = random.Random(f"{run.seed} {step} {run.rank}")
    lines = []
    for _ in range(count):
        line = ""
        while len(line) <= LENGTH:
            line += " ".join(draw.choice(words.split("|")) for words in WORDS.values()) + ". "
        lines.append([LETTERS.index(letter) for letter in line[: LENGTH + 1]])
    return torch.tensor(lines)


class Model(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.next = nn.Linear(width, len(LETTERS))
        self.register_buffer("before", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.next(self.layers(self.letters(letters) + self.places, mask=self.before, is_causal=True))


def loss_of(model: nn.Module, letters: torch.Tensor) -> torch.Tensor:
    guesses = model(letters[:, :-1])
    return nn.functional.cross_entropy(guesses.flatten(0, 1), letters[:, 1:].flatten())


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    state = torch.load(folder / "training.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    main()
