"""A small language model in Hugging Face's ``Trainer`` that learns to count: 3 5 7 9 1 ..., from nothing, offline.

Alone:          python train.py
As a search:    clutch experiment create search.yaml .

The callback reports what the trainer logs, makes its evaluations validations and its checkpoints checkpoints, and has
it save and leave when the cluster asks. ``resume_path`` is where a run that was interrupted goes on.
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import clutch

DEFAULTS = {"learning_rate": 0.003, "layers": 2, "width": 32, "steps": 60}
DIGITS, LENGTH = 10, 12


class Counting(torch.utils.data.Dataset):
    """Sequences that go on by the same step, modulo ten; the model is to say what comes next."""

    def __init__(self, size: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        begin = torch.randint(DIGITS, (size, 1), generator=chance)
        step = torch.randint(1, DIGITS, (size, 1), generator=chance)
        self.rows = (begin + step * torch.arange(LENGTH)) % DIGITS

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[place], "labels": self.rows[place]}


def main() -> None:
    torch.set_num_threads(1)  # so small a model is not faster with more
    with clutch.init(hparams=DEFAULTS) as run:
        torch.manual_seed(run.seed)
        shape = {"n_layer": run.hparams["layers"], "n_embd": run.hparams["width"], "n_head": 2}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=DIGITS, n_positions=LENGTH, **shape))
        callback = clutch.HuggingFaceCallback(run)
        trainer = Trainer(model, arguments(run), train_dataset=Counting(1024, 0), eval_dataset=Counting(128, 1),
                          callbacks=[callback])  # fmt: skip
        trainer.train(resume_from_checkpoint=callback.resume_path)


def arguments(run: clutch.Run) -> TrainingArguments:
    every = max(1, run.hparams["steps"] // 3)
    return TrainingArguments(
        output_dir=str(run.output_dir / "trainer"), max_steps=run.hparams["steps"],
        learning_rate=run.hparams["learning_rate"], per_device_train_batch_size=32, seed=run.seed,
        logging_steps=5, eval_strategy="steps", eval_steps=every, save_strategy="steps", save_steps=every,
        report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
