"""huggingface: ranks of transformers' Trainer or of accelerate, which join like torchrun's."""

from __future__ import annotations

from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.ddp import DDP


class HuggingFace(DDP):
    name = "huggingface"
    summary = (
        "starts every rank with the variables that transformers and accelerate read; no accelerate launch"
    )
    image_family = "huggingface"
    trainium_support = "may"
    script_joins_ranks = False
    libraries = ("transformers", "accelerate")
    other_libraries = DDP.libraries

    def image_family_for(self, has_accelerators: bool) -> str | None:
        # AWS publishes it only for GPUs (facts: Deep Learning Containers, "GPU only").
        return "huggingface" if has_accelerators else "pytorch"

    def find_warnings(self, context: LaunchContext) -> list[str]:
        has_only_torch = any(name in context.image for name in ("/pytorch:", "/pytorch-training:"))
        if context.target == "aws" and has_only_torch and context.requirements is None:
            return [
                "AWS has no Hugging Face image without GPUs: PyTorch's is used, which contains neither "
                "transformers nor accelerate; add them to a requirements file"
            ]
        return []
