import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms

distributed.init_process_group("nccl")
device = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(device)
world = distributed.get_world_size()

images = datasets.ImageFolder(
    os.environ["SM_CHANNEL_TRAIN"],
    transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    ),
)
sampler = DistributedSampler(images)
loader = DataLoader(images, batch_size=256, sampler=sampler, num_workers=12, pin_memory=True)
model = DistributedDataParallel(models.resnet50().cuda(), device_ids=[device])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world, momentum=0.9, weight_decay=1e-4)
loss_of = nn.CrossEntropyLoss()
for epoch in range(90):
    sampler.set_epoch(epoch)
    for picture, label in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(picture.cuda(non_blocking=True)), label.cuda(non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if distributed.get_rank() == 0:
        torch.save(model.module.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
distributed.destroy_process_group()
