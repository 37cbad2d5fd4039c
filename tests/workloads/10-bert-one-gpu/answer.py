import argparse
import os

from datasets import load_dataset
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=16)
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
model = AutoModelForQuestionAnswering.from_pretrained("bert-base-uncased")
rows = load_dataset("json", data_dir=os.environ["SM_CHANNEL_TRAIN"], split="train")
rows = rows.map(lambda row: tokenizer(row["question"], row["context"], truncation=True, max_length=384))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="/tmp/run",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch,
        learning_rate=3e-5,
        fp16=True,
        save_strategy="no",
    ),
    train_dataset=rows,
)
trainer.train()
trainer.save_model(os.environ["SM_MODEL_DIR"])
