"""Rebuild DistributedDataParallel's gradient buckets before the first step.

DDP reduces gradients in buckets, which it rebuilds after the first backward pass of every process, in the
order in which gradients arrived. With three or more ranks a sum depends on where in its bucket an element is,
so the first step after a restart would round differently from the same step of an uninterrupted run. Here
every process rebuilds the buckets before it trains, from a pass of zeros in reverse order of the parameters.
"""

from typing import Any, Optional


def rebuild_ddp_buckets(ddp_model: Any) -> Optional[str]:
    """Rebuild the gradient buckets of a DistributedDataParallel model now, as DDP does after its first step;
    return why that cannot be done, or None. Collective. Gradients, weights and random generators stay
    unchanged."""
    if ddp_model.find_unused_parameters and not ddp_model.static_graph:
        return None  # DDP never rebuilds the buckets of such a model
    if ddp_model.static_graph:
        return "static_graph=True: DDP would record the first pass as the graph; do not set it"
    if getattr(ddp_model, "_comm_hooks", None):
        return "a communication hook is registered before the Checkpointer; register it after it"
    if not hasattr(ddp_model.reducer, "_rebuild_buckets"):
        return "this PyTorch rebuilds buckets in an unknown way"
    if any(getattr(module, "sparse", False) for module in ddp_model.module.modules()):
        return "a layer has sparse gradients"
    import torch

    ignored_names = set(getattr(ddp_model, "parameters_to_ignore", ()))
    parameters = [
        parameter
        for name, parameter in ddp_model.module.named_parameters()
        if parameter.requires_grad and name not in ignored_names
    ]
    # A backward pass of zeros: the reducer, DDP's part that sums gradients over the ranks, notes in which
    # order they arrive, and forms buckets by it.
    gradients = [parameter.grad for parameter in parameters]
    ddp_model.reducer.prepare_for_forward()
    ddp_model.reducer.prepare_for_backward([])  # no parameter is unused
    for parameter in reversed(parameters):  # a backward pass begins at the last layer
        parameter.backward(torch.zeros_like(parameter))
    ddp_model.reducer._rebuild_buckets()  # noqa: SLF001  otherwise only a second pass would do it
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    return None
