"""Save and restore the random generators of one rank, and seed them for every sample.

Python's, NumPy's and PyTorch's global generators, and PyTorch's of the current CUDA device. A library that
the script does not import is not imported here.
"""

import contextlib
import hashlib
import random
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

PYTHON, NUMPY, TORCH, CUDA = "python", "numpy", "torch", "cuda"

SampleKey = Tuple[int, int]
"""A sample in its epoch: (epoch, index in the dataset), both from 0."""

_current_sample_seed: Optional[int] = None


def capture_generator_states() -> Dict[str, Any]:
    """Return the state of every global random generator by the library's name, as plain values and bytes. A
    library that is not imported has none."""
    state_by_library: Dict[str, Any] = {PYTHON: random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # A Mersenne Twister makes two normal numbers at a time: one of them may be cached for the next call.
        algorithm, key_words, position, has_gauss, cached_gauss = numpy.random.get_state()
        key_bytes = key_words.astype("<u4").tobytes()  # the same on every machine
        state_by_library[NUMPY] = (
            str(algorithm),
            key_bytes,
            int(position),
            int(has_gauss),
            float(cached_gauss),
        )
    torch = sys.modules.get("torch")
    if torch is not None:
        state_by_library[TORCH] = _tensor_to_bytes(torch.get_rng_state())
        if _is_cuda_initialized(torch):  # asking CUDA earlier would initialize it
            # Only the current device's: reading the others would create a context on each of them.
            state_by_library[CUDA] = _tensor_to_bytes(torch.cuda.get_rng_state())
    return state_by_library


def unused_generators() -> List[str]:
    """Return the libraries from whose global generator no number was drawn since it was seeded, as far as its
    state shows that: only NumPy's does."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    _, key_words, position, has_gauss, _ = numpy.random.get_state()
    # A new generator has used up its words, so that the first draw makes others; without a seed, all but one.
    is_position_new = len(key_words) - position in (0, 1)
    return [NUMPY] if is_position_new and not has_gauss else []


def restore_generator_states(state_by_library: Mapping[str, Any]) -> None:
    """Restore the global random generators as ``capture_generator_states`` returned them. A generator without
    a state in it stays unchanged."""
    if PYTHON in state_by_library:
        version, internal_state, cached_gauss = state_by_library[PYTHON]
        random.setstate((version, tuple(internal_state), cached_gauss))
    if NUMPY in state_by_library:
        import numpy

        algorithm, key_bytes, position, has_gauss, cached_gauss = state_by_library[NUMPY]
        key_words = numpy.frombuffer(bytes(key_bytes), dtype="<u4").astype(numpy.uint32)
        numpy.random.set_state((algorithm, key_words, position, has_gauss, cached_gauss))
    if TORCH in state_by_library:
        import torch

        torch.set_rng_state(_bytes_to_tensor(state_by_library[TORCH]))
        if CUDA in state_by_library and torch.cuda.is_available():
            torch.cuda.set_rng_state(_bytes_to_tensor(state_by_library[CUDA]))


def reseed_generators(*seed_parts: Any) -> None:
    """Seed all generators from these values: for a rank that the checkpoint does not have."""
    _seed_global_generators(_hash_to_seed(*seed_parts))
    torch = sys.modules.get("torch")
    if torch is not None and _is_cuda_initialized(torch):
        torch.cuda.manual_seed(_hash_to_seed(*seed_parts))


def sample_seed() -> int:
    """Return 64 bits that depend only on (seed, epoch, sample) of the sample being loaded: for a generator of
    your own inside a dataset's ``__getitem__``. Raises RuntimeError anywhere else."""
    if _current_sample_seed is None:
        raise RuntimeError("sample_seed() is for a dataset's __getitem__, loaded by ResumableOrder.loader()")
    return _current_sample_seed


@contextlib.contextmanager
def fork_rng(restore_state: bool) -> Iterator[None]:
    """Let code inside this context, which loads samples, draw from the global random generators.
    ``restore_state``: restore them at its end, for a process that also trains; a loader's worker process does
    not need that."""
    global _current_sample_seed
    if not restore_state:
        yield
        return
    # The generators that are seeded for each sample; not those of GPUs.
    python_state = random.getstate()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.default_generator.get_state() if torch is not None else None
    try:
        yield
    finally:
        _current_sample_seed = None  # no sample is being loaded: sample_seed() raises again
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.default_generator.set_state(torch_state)


def seed_sample(seed: int, epoch: int, index: int) -> None:
    """Seed the global generators for this sample."""
    global _current_sample_seed
    _current_sample_seed = _hash_to_seed("sample", seed, epoch, index)
    _seed_global_generators(_current_sample_seed)


def _seed_global_generators(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.manual_seed: that would also seed the accelerator's generators.
        torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


def _hash_to_seed(*seed_parts: Any) -> int:
    text = " ".join(str(part) for part in seed_parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")


def _is_cuda_initialized(torch: Any) -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _tensor_to_bytes(state: Any) -> bytes:
    return bytes(state.cpu().numpy().tobytes())


def _bytes_to_tensor(content: Any) -> Any:
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
