import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset, random_split


class LitClassifier(L.LightningModule):
    def __init__(self, hidden_dim: int = 64, learning_rate: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.l1 = torch.nn.Linear(28 * 28, hidden_dim)
        self.l2 = torch.nn.Linear(hidden_dim, 10)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x.flatten(1))))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True, sync_dist=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_acc", (self(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


class MyDataModule(L.LightningDataModule):
    def __init__(self, data_dir: str = "./", batch_size: int = 32):
        super().__init__()
        self.data_dir = data_dir
        self.batch_size = batch_size

    def prepare_data(self):
        g = torch.Generator().manual_seed(0)
        prototypes = torch.rand(10, 28, 28, generator=g)
        y = torch.randint(0, 10, (1500,), generator=g)
        x = prototypes[y] + 0.5 * torch.randn(1500, 28, 28, generator=g)
        torch.save((x, y), f"{self.data_dir}/digits.pt")

    def setup(self, stage):
        x, y = torch.load(f"{self.data_dir}/digits.pt")
        lengths = [1000, 250, 250]
        parts = random_split(TensorDataset(x, y), lengths, generator=torch.Generator().manual_seed(42))
        self.train_set, self.val_set, self.test_set = parts

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=self.batch_size)


def cli_main():
    # note: don't call fit!!
    LightningCLI(LitClassifier, MyDataModule, seed_everything_default=1234)


if __name__ == "__main__":
    cli_main()
