import torch
from torchvision import transforms as T

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class ClassificationPresetTrain:
    def __init__(self, *, crop_size, hflip_prob=0.5):
        self.transforms = T.Compose([
            T.RandomResizedCrop(crop_size, antialias=True),
            T.RandomHorizontalFlip(hflip_prob),
            T.PILToTensor(),
            T.ConvertImageDtype(torch.float),
            T.Normalize(mean=MEAN, std=STD),
        ])

    def __call__(self, img):
        return self.transforms(img)


class ClassificationPresetEval:
    def __init__(self, *, crop_size, resize_size):
        self.transforms = T.Compose([
            T.Resize(resize_size, antialias=True),
            T.CenterCrop(crop_size),
            T.PILToTensor(),
            T.ConvertImageDtype(torch.float),
            T.Normalize(mean=MEAN, std=STD),
        ])

    def __call__(self, img):
        return self.transforms(img)
