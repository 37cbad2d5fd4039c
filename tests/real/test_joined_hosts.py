"""Scripts of a newcomer on two hosts without GPUs, as they are written for one machine: they train together,
or the run says that they did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import Outcome
from tests.real.frameworks import smlaunch_of

pytestmark = pytest.mark.torch

LIGHTNING = """
import argparse, os, torch, lightning as L

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_nodes", type=int, default=1)
    args = parser.parse_args()
    dataset = torch.utils.data.TensorDataset(torch.rand(256, 8))
    trainer = L.Trainer(max_epochs=1, num_nodes=NUM_NODES, accelerator="cpu", devices=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(dataset, batch_size=16))
    print("world", trainer.world_size, "steps", trainer.global_step, flush=True)
"""
TRANSFORMERS = """
import os, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

data = [{"input_ids": torch.randint(0, 9, (8,)), "labels": torch.tensor(i % 2)} for i in range(64)]
config = BertConfig(vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=16)
args = TrainingArguments(os.environ["SM_MODEL_DIR"], num_train_epochs=1, report_to="none", save_strategy="no")
trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=data)
trainer.train()
print("world", args.world_size, "steps", trainer.state.global_step, flush=True)
"""
SEPARATE = (
    "warning: hosts trained separately: an optimizer took steps while torch.distributed had no process group"
)


def run(folder: Path, script: str, *options: str, command: str = "run") -> Outcome:
    path = folder / "source" / "train.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(script)
    return smlaunch_of("trainers", folder / "home", command, path, "--local", "--hosts", "2", *options)


def test_lightning_gets_the_number_of_hosts(tmp_path: Path) -> None:
    script = LIGHTNING.replace("NUM_NODES", "args.num_nodes")
    refused = run(tmp_path, script, "--", "--num_nodes", "1", command="plan")
    assert refused.code == 2
    assert "--num_nodes 1, and there are 2 hosts" in refused.text
    trained = run(tmp_path, script)
    assert trained.text.count("world 2 steps 8") == 2, trained.text
    assert "hosts trained separately" not in trained.text


def test_transformers_trainer_joins_without_gpus(tmp_path: Path) -> None:
    trained = run(tmp_path, TRANSFORMERS)
    assert trained.text.count("world 2 steps 4") == 2, trained.text


def test_a_run_says_that_its_hosts_have_trained_separately(tmp_path: Path) -> None:
    trained = run(tmp_path, LIGHTNING.replace("NUM_NODES", "int(os.environ.get('NODES', 1))"))
    assert trained.text.count("world 1 steps 16") == 2, trained.text
    assert sum(line.startswith(SEPARATE) for line in trained.err.splitlines()) == 1
