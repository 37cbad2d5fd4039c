import argparse
import logging
import os

import torch

from . import inputs, model


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", type=str, required=True, help="location for writing checkpoints and the model")
    parser.add_argument("--train-file", type=str, default="data/adult.data.csv", help="training data")
    parser.add_argument("--eval-file", type=str, default="data/adult.test.csv", help="evaluation data")
    parser.add_argument("--num-epochs", type=int, default=10, help="number of times to go through the data")
    parser.add_argument("--batch-size", default=64, type=int, help="number of records of a training step")
    parser.add_argument("--learning-rate", default=0.01, type=float, help="learning rate, default=.01")
    parser.add_argument("--hidden-units", nargs="*", type=int, default=[32, 16], help="units of each hidden layer")
    parser.add_argument("--verbosity", choices=["DEBUG", "ERROR", "FATAL", "INFO", "WARN"], default="INFO")
    args, _ = parser.parse_known_args()
    return args


def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        hits = sum(((net(x).squeeze(1) > 0) == (y > 0.5)).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


def train_and_evaluate(args):
    train_loader, eval_loader = inputs.get_loaders(args.train_file, args.eval_file, args.batch_size)
    net = model.create_model(args.hidden_units)
    optimizer = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
    loss_fn = torch.nn.BCEWithLogitsLoss()
    for epoch in range(args.num_epochs):
        net.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(net(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
        logging.info("epoch %d: loss %.4f, eval accuracy %.3f", epoch, loss.item(), evaluate(net, eval_loader))

    os.makedirs(args.job_dir, exist_ok=True)
    export_path = os.path.join(args.job_dir, "model.pt")
    torch.save(net.state_dict(), export_path)
    print("Model exported to: {}".format(export_path))


if __name__ == "__main__":
    args = get_args()
    logging.basicConfig(level=args.verbosity)
    train_and_evaluate(args)
