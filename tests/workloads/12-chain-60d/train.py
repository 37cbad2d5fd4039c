import glob
import os

import numpy
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5_000_000
distributed.init_process_group("nccl")
rank, device = distributed.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(device)
folder = os.environ.get("SMLAUNCH_CHECKPOINTS", "/opt/ml/checkpoints")
path = os.path.join(folder, "state.pt")
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
model = DistributedDataParallel(nn.TransformerEncoder(layer, 12).cuda(), device_ids=[device])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
step = 0
if os.path.exists(path):
    state = torch.load(path, map_location="cuda")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
shards = sorted(glob.glob(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "*.npy")))
while step < STEPS:
    mine = shards[(step * distributed.get_world_size() + rank) % len(shards)]
    x = torch.tensor(numpy.load(mine, mmap_mode="r")[:16]).cuda()
    loss = (model(x[:, :-1]) - x[:, 1:]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0 and step % 1000 == 0:
        print(f"smlaunch: progress step={step} steps={STEPS} loss={loss.item()}", flush=True)
        torch.save(
            {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
            path + ".new",
        )
        os.replace(path + ".new", path)
distributed.destroy_process_group()
