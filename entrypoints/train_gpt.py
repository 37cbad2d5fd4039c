"""Train a small GPT on real text, resumable at any step: cut it anywhere and it ends with the same weights.

    smlaunch run entrypoints/train_gpt.py --strategy ddp --processes-per-host 3 --segment 30s --local

The text ships with Python: the 460 KB of its language reference that ``help()`` shows (pydoc_data.topics).
A token is a byte; a sample is a window of the text. One in twenty windows is held out.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from smlaunch.train import Checkpointer, ResumableOrder

HELD_OUT = 20
"""Every so many windows one is kept for the test."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a small GPT on the Python language reference")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=12, help="over all ranks together")
    parser.add_argument("--context", type=int, default=64, help="bytes that the model sees")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of ``context`` bytes and the bytes that follow each of them: two int64 tensors (context,)."""

    def __init__(self, context: int, held_out: bool) -> None:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics)).encode("utf-8")
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context
        windows = range((len(text) - 1) // context)
        self._windows = [window for window in windows if (window % HELD_OUT == 0) == held_out]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = self._windows[index] * self._context
        window = self._bytes[start : start + self._context + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each normalized first (as in GPT-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.before_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        mixed = self.queries_keys_values(self.before_attention(hidden))
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in mixed.split(width, dim=2)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joined(attended.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.feed(self.before_feed(hidden))


class GPT(nn.Module):
    """Bytes (batch, length) -> logits of the next byte (batch, length, 256)."""

    def __init__(self, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.next_byte = nn.Linear(width, 256, bias=False)
        self.next_byte.weight = self.tokens.weight
        for table in (self.tokens, self.places):  # one is also the last layer: logits must begin near zero
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.dropout(self.tokens(tokens) + self.places(positions))
        return self.next_byte(self.last(self.blocks(hidden)))


def learning_rate(step: int, steps: int, warm_up: int = 50) -> float:
    """A share of the full rate: a linear warm-up, then half a cosine."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def next_byte_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, context: int, device: torch.device) -> float:
    """In nats per byte; an untrained model is at ln 256 = 5.55."""
    windows = Windows(context, held_out=True)
    model.eval()
    pairs = [windows[index] for index in range(len(windows))]
    inputs, targets = (torch.stack(side).to(device) for side in zip(*pairs, strict=True))
    return float(next_byte_loss(model, inputs, targets))


@torch.no_grad()
def continue_text(model: nn.Module, start: str, length: int, context: int, device: torch.device) -> str:
    """What the model makes of a beginning; always the same for the same weights."""
    generator = torch.Generator().manual_seed(0)
    tokens = list(start.encode())
    for _ in range(length):
        logits = model(torch.tensor([tokens[-context:]], device=device))[0, -1].float().cpu()
        tokens.append(int(torch.multinomial((logits / 0.8).softmax(0), 1, generator=generator)))
    return bytes(tokens).decode("utf-8", "replace")


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    args = arguments()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    network = GPT(args.context, args.width, args.layers, args.heads).to(device)
    model = DistributedDataParallel(network) if world_size > 1 else network
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args.steps))
    windows = Windows(args.context, held_out=False)
    order = ResumableOrder(len(windows), batch_size=args.batch_size, seed=args.seed)
    with Checkpointer(model=model, optimizer=optimizer, scheduler=schedule, order=order) as run:
        loader = order.loader(windows, num_workers=args.workers)
        for inputs, targets in run.batches(loader, steps=args.steps):
            loss = next_byte_loss(model, inputs.to(device), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            run.step(loss=loss)
    del model  # DDP must be gone before the process group is
    if run.finished and rank == 0:
        args.model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), args.model_dir / "model.pt")
        test_loss = held_out_loss(network, args.context, device)
        print(f"smlaunch: metric held_out_loss={test_loss:.4f}")
        print(f"weights sha256 {weights_hash(network)}")
        print(continue_text(network, "The statement", 200, args.context, device), flush=True)
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
