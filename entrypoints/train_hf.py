"""Train a tiny GPT-2 with Hugging Face's Trainer, resumable at any step.

    smlaunch run entrypoints/train_hf.py --processes-per-host 2 --segment 5m --local

The model is made here, and so is its text (sums such as ``17+25=42``): nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from smlaunch.train.transformers import Resume, SeededDataset

SYMBOLS = "0123456789+= "


class Sums(Dataset[dict[str, Tensor]]):
    """``a+b=c`` as token ids (12,), and the same as labels. ``swap``: at times it is ``b+a=c``, as Python's
    global generator has it: ``Seeded`` sets that for each sample."""

    def __init__(self, count: int, seed: int, swap: bool) -> None:
        chance = random.Random(seed)
        self.pairs = [(chance.randrange(100), chance.randrange(100)) for _ in range(count)]
        self.swap = swap

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        a, b = self.pairs[index]
        if self.swap and random.random() < 0.5:
            a, b = b, a
        ids = torch.tensor([SYMBOLS.index(symbol) for symbol in f"{a}+{b}={a + b}".ljust(12)])
        return {"input_ids": ids, "labels": ids}


def weights_hash(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="sums, by Hugging Face's Trainer")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--accumulate", type=int, default=2, help="batches to a step of the optimizer")
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each rank")
    parser.add_argument("--every-steps", type=int, help="save by steps, not by the clock")
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    args = parser.parse_args()
    set_seed(0)
    config = GPT2Config(
        vocab_size=len(SYMBOLS),
        n_positions=12,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=12,
        eos_token_id=12,
    )
    settings = TrainingArguments(
        output_dir="/tmp/trainer",  # noqa: S108 - nothing is written there: saving is smlaunch's
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        logging_steps=1,
        gradient_accumulation_steps=args.accumulate,
        eval_strategy="epoch",
        metric_for_best_model="eval_loss",
        dataloader_num_workers=args.workers,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend=None if torch.cuda.is_available() else "gloo",
    )
    trainer = Trainer(
        GPT2LMHeadModel(config),
        settings,
        train_dataset=SeededDataset(Sums(args.samples, seed=0, swap=True)),
        eval_dataset=Sums(args.samples // 8, seed=1, swap=False),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=5)],
    )
    resume = Resume(trainer, every_steps=args.every_steps)
    resume.train()
    if settings.world_size != int(os.environ.get("WORLD_SIZE", "1")):
        raise RuntimeError(
            f"the Trainer joined {settings.world_size} ranks, and trained separately from others"
        )
    if resume.finished and trainer.is_world_process_zero():
        trainer.save_model(str(args.model_dir))
        for row in trainer.state.log_history:
            if "eval_loss" in row:
                print(f"evaluated {row['epoch']} {row['eval_loss']}")
        print(f"weights sha256 {weights_hash(trainer.model)}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
