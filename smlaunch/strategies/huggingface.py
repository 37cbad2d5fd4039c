"""huggingface: ranks of transformers' Trainer or of accelerate, which join as torchrun's do."""

from __future__ import annotations

from smlaunch.strategies.base import Setting
from smlaunch.strategies.ddp import DDP


class HuggingFace(DDP):
    name = "huggingface"
    summary = (
        "starts every rank with the variables that transformers and accelerate join by; no accelerate launch"
    )
    family = "huggingface"
    trainium = "may"
    joined_by_script = False
    libraries = ("transformers", "accelerate")
    other_libraries = DDP.libraries

    def family_on(self, accelerated: bool) -> str | None:
        # AWS publishes it for GPUs alone (facts: Deep Learning Containers, "GPU only").
        return "huggingface" if accelerated else "pytorch"

    def advice(self, setting: Setting) -> list[str]:
        brings_torch_alone = any(name in setting.image for name in ("/pytorch:", "/pytorch-training:"))
        if setting.target == "aws" and brings_torch_alone and setting.requirements is None:
            return [
                "AWS has no Hugging Face image without GPUs: PyTorch's is taken, which brings neither "
                "transformers nor accelerate; name them in a requirements file"
            ]
        return []
