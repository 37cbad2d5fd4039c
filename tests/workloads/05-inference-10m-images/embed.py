import os
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Photos(Dataset):
    def __init__(self, folder):
        self.files = sorted(path for path in Path(folder).rglob("*.jpg"))
        self.prepare = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return str(self.files[index]), self.prepare(Image.open(self.files[index]).convert("RGB"))


model = torch.jit.load(os.path.join(os.environ["SM_CHANNEL_MODEL"], "model.pt")).half().cuda().eval()
host = os.environ["SM_CURRENT_HOST"]
names, vectors = [], []
with torch.inference_mode():
    for name, batch in DataLoader(Photos(os.environ["SM_CHANNEL_IMAGES"]), batch_size=128, num_workers=4):
        vectors.append(model(batch.half().cuda()).float().cpu().numpy())
        names.extend(name)
numpy.savez(
    os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], f"{host}.npz"), names=names, x=numpy.concatenate(vectors)
)
