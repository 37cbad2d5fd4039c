"""DistributedDataParallel's buckets, settled before the first step.

DDP sums gradients up in buckets, laid out anew after the first backward pass of every process by the order in
which gradients came. With three or more ranks a sum depends on where in its bucket an element lies, so the
first step after a restart would round differently from the same step of an unbroken run. Here every process
makes that new layout before it trains, from one pass of zeros in reverse order of the parameters.
"""

from typing import Any, Optional


def settle(ddp: Any) -> Optional[str]:
    """Collective. Leaves no trace in gradients, weights or generators. Why it could not be done, or None."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return None  # such buckets are never laid out anew
    if ddp.static_graph:
        return "static_graph=True: the first pass would be taken for the graph; leave it off"
    if getattr(ddp, "_comm_hooks", None):
        return "a communication hook is registered before the Checkpointer; register it after it"
    if not hasattr(ddp.reducer, "_rebuild_buckets"):
        return "this PyTorch lays buckets out in a way that is not known here"
    if any(getattr(module, "sparse", False) for module in ddp.module.modules()):
        return "a layer has sparse gradients"
    import torch

    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    parameters = [
        parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    gradients = [parameter.grad for parameter in parameters]
    ddp.reducer.prepare_for_forward()
    ddp.reducer.prepare_for_backward([])
    for parameter in reversed(parameters):
        parameter.backward(torch.zeros_like(parameter))
    ddp.reducer._rebuild_buckets()
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    return None
