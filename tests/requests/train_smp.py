"""A script for SageMaker's model-parallel library."""

import torch
import torch.distributed as dist
import torch.sagemaker as tsm

tsm.init()
model = tsm.transform(torch.nn.Linear(4, 4))
dist.destroy_process_group()
