"""Save and restore the random generators of one rank, and seed them for every sample.

Python's, NumPy's and PyTorch's global generators, and PyTorch's of the current CUDA device. A library that
the script does not import is not imported here.
"""

import contextlib
import hashlib
import random
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional

PYTHON, NUMPY, TORCH, CUDA = "python", "numpy", "torch", "cuda"

_current_sample: Optional[int] = None


def capture() -> Dict[str, Any]:
    """Return the state of every existing generator by its name, as plain values and bytes."""
    state: Dict[str, Any] = {PYTHON: random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, words, position, has_gauss, gauss = numpy.random.get_state()
        state[NUMPY] = (str(name), words.astype("<u4").tobytes(), int(position), int(has_gauss), float(gauss))
    torch = sys.modules.get("torch")
    if torch is not None:
        state[TORCH] = _bytes_of(torch.get_rng_state())
        if _cuda_in_use(torch):
            # Only the current device's: reading the others would create a context on each of them.
            state[CUDA] = _bytes_of(torch.cuda.get_rng_state())
    return state


def unused_generators() -> List[str]:
    """Return generators that were not drawn from since they were seeded, as far as that can be seen: NumPy's
    is then at the end of its words (one before it without a seed), without a cached normal number."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    _, words, position, has_gauss, _ = numpy.random.get_state()
    return [NUMPY] if len(words) - position in (0, 1) and not has_gauss else []


def restore(state: Mapping[str, Any]) -> None:
    """Restore what ``capture`` returned. A generator without a state in it stays unchanged."""
    if PYTHON in state:
        version, words, gauss = state[PYTHON]
        random.setstate((version, tuple(words), gauss))
    if NUMPY in state:
        import numpy

        name, content, position, has_gauss, gauss = state[NUMPY]
        words = numpy.frombuffer(bytes(content), dtype="<u4").astype(numpy.uint32)
        numpy.random.set_state((name, words, position, has_gauss, gauss))
    if TORCH in state:
        import torch

        torch.set_rng_state(_tensor_of(state[TORCH]))
        if CUDA in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(_tensor_of(state[CUDA]))


def reseed(*seed_parts: Any) -> None:
    """Seed all generators from these values: for a rank that the checkpoint does not have."""
    _seed_all(_hash64(*seed_parts))
    torch = sys.modules.get("torch")
    if torch is not None and _cuda_in_use(torch):
        torch.cuda.manual_seed(_hash64(*seed_parts))


def sample_seed() -> int:
    """Return 64 bits that depend only on (seed, epoch, sample) of the sample being loaded: for a generator of
    your own inside a dataset's ``__getitem__``. Raises RuntimeError anywhere else."""
    if _current_sample is None:
        raise RuntimeError("sample_seed() is for a dataset's __getitem__, loaded by ResumableOrder.loader()")
    return _current_sample


@contextlib.contextmanager
def fork_rng(restore_state: bool) -> Iterator[None]:
    """Load samples inside this context. ``restore_state``: restore the training's generators at its end."""
    global _current_sample
    if not restore_state:
        yield
        return
    python_state = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.default_generator.get_state() if torch is not None else None
    try:
        yield
    finally:
        _current_sample = None
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.default_generator.set_state(torch_state)


def seed_sample(seed: int, epoch: int, index: int) -> None:
    """Seed the global generators for this sample."""
    global _current_sample
    _current_sample = _hash64("sample", seed, epoch, index)
    _seed_all(_current_sample)


def _seed_all(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: that would also seed the accelerator's generators.
        torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


def _hash64(*seed_parts: Any) -> int:
    text = " ".join(str(part) for part in seed_parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")


def _cuda_in_use(torch: Any) -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _bytes_of(state: Any) -> bytes:
    return bytes(state.cpu().numpy().tobytes())


def _tensor_of(content: Any) -> Any:
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
