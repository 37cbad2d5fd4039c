import argparse
import os

import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from checkpoint import Checkpointer
from model import ModelArgs, Transformer


def set_modules_to_forward_prefetch(model, num_to_forward_prefetch):
    for i, layer in enumerate(model.layers):
        upcoming = list(model.layers[i + 1 : i + 1 + num_to_forward_prefetch])
        if upcoming:
            layer.set_modules_to_forward_prefetch(upcoming)


def main(args):
    rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        device_type, backend = "cuda", "nccl"
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        device_type, backend = "cpu", "gloo"
        device = torch.device("cpu")
    torch.distributed.init_process_group(backend=backend)
    torch.manual_seed(0)

    vocab_size, batch_size, seq_len = 256, 16, 64
    model_args = ModelArgs(n_layers=4, n_heads=4, vocab_size=vocab_size, max_seq_len=seq_len, dropout_p=0)
    with torch.device("meta"):
        model = Transformer(model_args)
    fsdp_kwargs = {}
    if args.mixed_precision:
        fsdp_kwargs["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = torch.distributed.init_device_mesh(device_type, (torch.distributed.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **fsdp_kwargs)
    fully_shard(model, mesh=mesh, **fsdp_kwargs)
    assert isinstance(model, FSDPModule)
    if torch.distributed.get_rank() == 0:
        print(model)
    if args.explicit_prefetching:
        set_modules_to_forward_prefetch(model, num_to_forward_prefetch=2)

    checkpointer = Checkpointer("checkpoints", dcp_api=args.dcp_api)
    model.to_empty(device=device)
    if checkpointer.last is None:
        model.reset_parameters()
    else:
        print(f"Loading {checkpointer.last}")
        checkpointer.load_model(model)

    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    if checkpointer.last is not None:
        checkpointer.load_optim(model, optim)

    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    for step in range(10):
        if args.explicit_prefetching:
            model.unshard()
        # Counting modulo the vocabulary: something to learn
        start = torch.randint(0, vocab_size, (batch_size, 1), generator=generator)
        x = ((start + torch.arange(seq_len + 1)) % vocab_size).to(device)
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optim.step()
        optim.zero_grad()
        if torch.distributed.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")

    checkpointer.save(model, optim)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PyTorch FSDP2 example")
    parser.add_argument("--explicit-prefetching", action="store_true", default=False)
    parser.add_argument("--mixed-precision", action="store_true", default=False)
    parser.add_argument("--dcp-api", action="store_true", default=False)
    main(parser.parse_args())
