import argparse
import os
import random

import numpy as np
import torch
import torch.distributed
import torch.nn as nn
import torch.optim as optim
import torchvision
import torchvision.transforms as transforms
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def set_random_seeds(random_seed=0):
    torch.manual_seed(random_seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    np.random.seed(random_seed)
    random.seed(random_seed)


def evaluate(model, device, test_loader):
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for images, labels in test_loader:
            images, labels = images.to(device), labels.to(device)
            predicted = model(images).argmax(dim=1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    return correct / total


def main():
    num_epochs_default = 3
    batch_size_default = 32  # per process
    learning_rate_default = 0.05
    random_seed_default = 0
    model_dir_default = "saved_models"
    model_filename_default = "resnet_distributed.pth"

    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--local-rank", "--local_rank", type=int,
                        help="Local rank. Necessary for using the torch.distributed.launch utility.")
    parser.add_argument("--num_epochs", type=int, help="Number of training epochs.", default=num_epochs_default)
    parser.add_argument("--batch_size", type=int, help="Training batch size for one process.", default=batch_size_default)
    parser.add_argument("--learning_rate", type=float, help="Learning rate.", default=learning_rate_default)
    parser.add_argument("--random_seed", type=int, help="Random seed.", default=random_seed_default)
    parser.add_argument("--model_dir", type=str, help="Directory for saving models.", default=model_dir_default)
    parser.add_argument("--model_filename", type=str, help="Model filename.", default=model_filename_default)
    parser.add_argument("--resume", action="store_true", help="Resume training from saved checkpoint.")
    argv = parser.parse_args()

    local_rank = argv.local_rank
    model_filepath = os.path.join(argv.model_dir, argv.model_filename)

    # We need to use seeds to make sure that the models initialized in different processes are the same
    set_random_seeds(random_seed=argv.random_seed)

    # Initializes the distributed backend which will take care of synchronizing nodes/GPUs
    torch.distributed.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")

    # Encapsulate the model on the GPU assigned to the current process
    device = torch.device("cuda:{}".format(local_rank) if torch.cuda.is_available() else "cpu")
    model = torchvision.models.resnet18(num_classes=10).to(device)
    device_ids = [local_rank] if torch.cuda.is_available() else None
    ddp_model = torch.nn.parallel.DistributedDataParallel(model, device_ids=device_ids, output_device=device_ids and local_rank)

    # We only save the model who uses device "cuda:0". To resume, the device for the saved model would also be "cuda:0".
    if argv.resume:
        map_location = {"cuda:0": "cuda:{}".format(local_rank)}
        ddp_model.load_state_dict(torch.load(model_filepath, map_location=map_location))

    transform = transforms.Compose([
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ])

    # Data should be prefetched: download should be set to be False, because it is not multiprocess safe
    train_set = torchvision.datasets.FakeData(size=256, image_size=(3, 32, 32), num_classes=10, transform=transform)
    test_set = torchvision.datasets.FakeData(size=64, image_size=(3, 32, 32), num_classes=10, transform=transform, random_offset=1000)

    # Restricts data loading to a subset of the dataset exclusive to the current process
    train_sampler = DistributedSampler(dataset=train_set)
    train_loader = DataLoader(dataset=train_set, batch_size=argv.batch_size, sampler=train_sampler, num_workers=2)
    # Test loader does not have to follow distributed sampling strategy
    test_loader = DataLoader(dataset=test_set, batch_size=64, shuffle=False, num_workers=2)

    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=argv.learning_rate, momentum=0.9, weight_decay=1e-5)

    # Loop over the dataset multiple times
    for epoch in range(argv.num_epochs):
        print("Local Rank: {}, Epoch: {}, Training ...".format(local_rank, epoch))

        # Save and evaluate model routinely
        if epoch % 2 == 0 and local_rank == 0:
            accuracy = evaluate(model=model, device=device, test_loader=test_loader)
            torch.save(ddp_model.state_dict(), model_filepath)
            print("-" * 75)
            print("Epoch: {}, Accuracy: {}".format(epoch, accuracy))
            print("-" * 75)

        train_sampler.set_epoch(epoch)
        ddp_model.train()
        for inputs, labels in train_loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(ddp_model(inputs), labels)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
