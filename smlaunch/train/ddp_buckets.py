"""Rebuild DistributedDataParallel's gradient buckets before the first step.

DDP reduces gradients in buckets, which it rebuilds after the first backward pass of every process, in the
order in which gradients arrived. With three or more ranks a sum depends on where in its bucket an element is,
so the first step after a restart would round differently from the same step of an uninterrupted run. Here
every process rebuilds the buckets before it trains, from a pass of zeros in reverse order of the parameters.
"""

from typing import Any, Optional


def rebuild_ddp_buckets(ddp: Any) -> Optional[str]:
    """Rebuild the buckets; return why it could not be done, or None. Collective. Gradients, weights and
    generators stay unchanged."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return None  # such buckets are never rebuilt
    if ddp.static_graph:
        return "static_graph=True: DDP would record the first pass as the graph; do not set it"
    if getattr(ddp, "_comm_hooks", None):
        return "a communication hook is registered before the Checkpointer; register it after it"
    if not hasattr(ddp.reducer, "_rebuild_buckets"):
        return "this PyTorch rebuilds buckets in an unknown way"
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
    ddp.reducer._rebuild_buckets()  # noqa: SLF001  otherwise only a second pass would do it
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    return None
