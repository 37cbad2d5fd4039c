import lightning as L
import torch
import torch.nn.functional as F
from torch import nn, utils


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Digits(utils.data.Dataset):
    """Pictures of the size of MNIST's, one prototype for each digit."""

    def __init__(self, n=2048):
        g = torch.Generator().manual_seed(0)
        prototypes = torch.rand(10, 1, 28, 28, generator=g)
        self.labels = torch.randint(0, 10, (n,), generator=g)
        self.images = prototypes[self.labels] + 0.1 * torch.rand(n, 1, 28, 28, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def main():
    L.seed_everything(42)
    train_loader = utils.data.DataLoader(Digits(), batch_size=32, shuffle=True)
    autoencoder = LitAutoEncoder()

    # train on 4 processes across 2 nodes
    trainer = L.Trainer(accelerator="auto", devices=2, num_nodes=2, strategy="ddp", max_epochs=2)
    trainer.fit(model=autoencoder, train_dataloaders=train_loader)
    print("train_loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
