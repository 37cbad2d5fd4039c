"""The random generators of one rank, kept and given back; and one for every sample.

Python's, NumPy's and PyTorch's global generators, and PyTorch's of the current CUDA device. A library that
the script does not import is not imported for this.
"""

import contextlib
import hashlib
import random
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional

PYTHON, NUMPY, TORCH, CUDA = "python", "numpy", "torch", "cuda"

_current_sample: Optional[int] = None


def capture() -> Dict[str, Any]:
    """The state of every generator there is, as plain values and bytes, by its name."""
    state: Dict[str, Any] = {PYTHON: random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, words, position, has_gauss, gauss = numpy.random.get_state()
        state[NUMPY] = (str(name), words.astype("<u4").tobytes(), int(position), int(has_gauss), float(gauss))
    torch = sys.modules.get("torch")
    if torch is not None:
        state[TORCH] = _bytes_of(torch.get_rng_state())
        if _cuda_in_use(torch):
            # The current device's only: to ask the others would make a context on each of them.
            state[CUDA] = _bytes_of(torch.cuda.get_rng_state())
    return state


def untouched() -> List[str]:
    """Generators from which nobody has drawn since they were last seeded, where that can be seen: NumPy's
    stands at the end of its words then (one before it without a seed), and keeps no spare normal number."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    _, words, position, has_gauss, _ = numpy.random.get_state()
    return [NUMPY] if len(words) - position in (0, 1) and not has_gauss else []


def restore(state: Mapping[str, Any]) -> None:
    """What ``capture`` gave. A generator that has no state in it stays as it is."""
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


def reseed(*words: Any) -> None:
    """All generators anew, from what is said: for a rank that was not there before."""
    _seed_all(_hash(*words))
    torch = sys.modules.get("torch")
    if torch is not None and _cuda_in_use(torch):
        torch.cuda.manual_seed(_hash(*words))


def sample_seed() -> int:
    """64 bits that depend on (seed, epoch, sample) of the sample being loaded alone: for a generator of your
    own inside a dataset's ``__getitem__``. RuntimeError anywhere else."""
    if _current_sample is None:
        raise RuntimeError("sample_seed() is for a dataset's __getitem__, loaded by ResumableOrder.loader()")
    return _current_sample


@contextlib.contextmanager
def apart(keep: bool) -> Iterator[None]:
    """Samples are loaded inside. ``keep``: the generators are the training's own, and are put back."""
    global _current_sample
    if not keep:
        yield
        return
    python = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    words = numpy.random.get_state() if numpy is not None else None
    tensor = torch.default_generator.get_state() if torch is not None else None
    try:
        yield
    finally:
        _current_sample = None
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(words)
        if torch is not None:
            torch.default_generator.set_state(tensor)


def begin_sample(seed: int, epoch: int, index: int) -> None:
    """From here on the global generators are this sample's."""
    global _current_sample
    _current_sample = _hash("sample", seed, epoch, index)
    _seed_all(_current_sample)


def _seed_all(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: that would reach for the accelerator's generators as well.
        torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


def _hash(*words: Any) -> int:
    text = " ".join(str(word) for word in words)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")


def _cuda_in_use(torch: Any) -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _bytes_of(state: Any) -> bytes:
    return bytes(state.cpu().numpy().tobytes())


def _tensor_of(content: Any) -> Any:
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
