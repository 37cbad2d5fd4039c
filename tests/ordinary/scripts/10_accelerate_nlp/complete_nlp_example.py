import argparse
import os

import torch
from datasets import load_dataset
from sklearn.metrics import accuracy_score, f1_score
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
    set_seed,
)

from accelerate import Accelerator

########################################################################
# Trains a BERT model on sentence pairs (GLUE MRPC), on any of:
#   - single CPU or single GPU
#   - multi GPUS (using PyTorch distributed mode)
#   - fp16 (mixed-precision) or fp32 (normal precision)
# with saving and loading of the training state.
########################################################################

MAX_GPU_BATCH_SIZE = 16
EVAL_BATCH_SIZE = 32


def get_dataloaders(accelerator, tokenizer, batch_size):
    datasets = load_dataset("csv", data_files={"train": "data/train.csv", "validation": "data/validation.csv"})

    def tokenize_function(examples):
        return tokenizer(examples["sentence1"], examples["sentence2"], truncation=True, max_length=None)

    # the main process first: the others then find the cached result
    with accelerator.main_process_first():
        tokenized = datasets.map(tokenize_function, batched=True, remove_columns=["idx", "sentence1", "sentence2"])
    tokenized = tokenized.rename_column("label", "labels")

    def collate_fn(examples):
        return tokenizer.pad(examples, padding="longest", return_tensors="pt")

    train = DataLoader(tokenized["train"], shuffle=True, collate_fn=collate_fn, batch_size=batch_size)
    evaluation = DataLoader(tokenized["validation"], shuffle=False, collate_fn=collate_fn, batch_size=EVAL_BATCH_SIZE)
    return train, evaluation


def training_function(config, args):
    kwargs = {"cpu": args.cpu, "mixed_precision": args.mixed_precision}
    if args.with_tracking:
        kwargs.update(log_with="all", project_dir=args.project_dir)
    accelerator = Accelerator(**kwargs)

    checkpointing_steps = args.checkpointing_steps
    if checkpointing_steps is not None and checkpointing_steps != "epoch":
        if not checkpointing_steps.isdigit():
            raise ValueError(f"`checkpointing_steps` must be a number or `epoch`, not `{checkpointing_steps}`")
        checkpointing_steps = int(checkpointing_steps)

    num_epochs = int(config["num_epochs"])
    batch_size = int(config["batch_size"])
    gradient_accumulation_steps = 1
    if batch_size > MAX_GPU_BATCH_SIZE:
        gradient_accumulation_steps = batch_size // MAX_GPU_BATCH_SIZE
        batch_size = MAX_GPU_BATCH_SIZE

    if args.with_tracking:
        accelerator.init_trackers(os.path.splitext(os.path.basename(__file__))[0], config)

    tokenizer = AutoTokenizer.from_pretrained("./bert-tiny")
    train_dataloader, eval_dataloader = get_dataloaders(accelerator, tokenizer, batch_size)

    # Instantiate the model here so that the seed also controls new weights initialization
    set_seed(int(config["seed"]))
    model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained("./bert-tiny"))
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=10,
        num_training_steps=(len(train_dataloader) * num_epochs) // gradient_accumulation_steps,
    )

    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    overall_step, starting_epoch, resume_step = 0, 0, None
    if args.resume_from_checkpoint:
        accelerator.print(f"Resumed from checkpoint: {args.resume_from_checkpoint}")
        accelerator.load_state(args.resume_from_checkpoint)
        name = os.path.basename(os.path.normpath(args.resume_from_checkpoint))
        if name.startswith("epoch_"):
            starting_epoch = int(name[len("epoch_"):]) + 1
        else:
            resume_step = int(name[len("step_"):])
            starting_epoch, resume_step = divmod(resume_step, len(train_dataloader))
        overall_step = starting_epoch * len(train_dataloader) + (resume_step or 0)

    for epoch in range(starting_epoch, num_epochs):
        model.train()
        total_loss = 0
        batches = train_dataloader
        if epoch == starting_epoch and resume_step:
            batches = accelerator.skip_first_batches(train_dataloader, resume_step)
        for step, batch in enumerate(batches):
            batch.to(accelerator.device)
            loss = model(**batch).loss / gradient_accumulation_steps
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            if step % gradient_accumulation_steps == 0:
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            overall_step += 1
            if isinstance(checkpointing_steps, int) and overall_step % checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))

        model.eval()
        predictions, references = [], []
        for batch in eval_dataloader:
            batch.to(accelerator.device)
            with torch.no_grad():
                outputs = model(**batch)
            p, r = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
            predictions += p.tolist()
            references += r.tolist()
        eval_metric = {"accuracy": accuracy_score(references, predictions), "f1": f1_score(references, predictions)}
        # Use accelerator.print to print only on the main process.
        accelerator.print(f"epoch {epoch}:", eval_metric)
        if args.with_tracking:
            accelerator.log({**eval_metric, "train_loss": total_loss.item() / len(train_dataloader)}, step=epoch)
        if checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))

    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--mixed_precision", type=str, default=None, choices=["no", "fp16", "bf16", "fp8"],
                        help="Whether to use mixed precision.")
    parser.add_argument("--cpu", action="store_true", help="If passed, will train on the CPU.")
    parser.add_argument("--checkpointing_steps", type=str, default=None,
                        help="Save the states at the end of every n steps, or 'epoch' for each epoch.")
    parser.add_argument("--resume_from_checkpoint", type=str, default=None,
                        help="If the training should continue from a checkpoint folder.")
    parser.add_argument("--with_tracking", action="store_true", help="Whether to use the experiment trackers.")
    parser.add_argument("--output_dir", type=str, default=".", help="Where all checkpoint folders will be stored.")
    parser.add_argument("--project_dir", type=str, default="logs", help="Where to store the logs of the trackers.")
    args = parser.parse_args()
    config = {"lr": 1e-3, "num_epochs": 3, "seed": 42, "batch_size": 16}
    training_function(config, args)


if __name__ == "__main__":
    main()
