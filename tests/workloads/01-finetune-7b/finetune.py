import argparse
import os

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--sequence", type=int, default=4096)
options = parser.parse_args()

base = os.environ["SM_CHANNEL_MODEL"]
tokenizer = AutoTokenizer.from_pretrained(base)
model = AutoModelForCausalLM.from_pretrained(base, torch_dtype="float32")
rows = load_dataset("json", data_dir=os.environ["SM_CHANNEL_TRAIN"], split="train")
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=options.sequence))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="/opt/ml/checkpoints",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=2,
        gradient_checkpointing=True,
        bf16=True,
        learning_rate=2e-5,
        fsdp="full_shard auto_wrap",
        save_steps=500,
    ),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model(os.environ["SM_MODEL_DIR"])
