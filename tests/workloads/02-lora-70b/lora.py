import os

from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

base = os.environ["SM_CHANNEL_MODEL"]
tokenizer = AutoTokenizer.from_pretrained(base)
model = AutoModelForCausalLM.from_pretrained(base, torch_dtype="bfloat16", low_cpu_mem_usage=True)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
rows = load_dataset("json", data_dir=os.environ["SM_CHANNEL_TRAIN"], split="train")
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=4096))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="/opt/ml/checkpoints",
        num_train_epochs=3,
        per_device_train_batch_size=1,
        gradient_checkpointing=True,
        bf16=True,
        learning_rate=1e-4,
        fsdp="full_shard auto_wrap",
    ),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
model.save_pretrained(os.environ["SM_MODEL_DIR"])
