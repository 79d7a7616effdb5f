"""Random streams that depend only on the seed and on the name of the stream.

There is no hidden state: the random numbers of iteration 7,000 are the same whether or not the run was interrupted
before it, and however many threads prepare batches in advance.
"""

import random
import zlib

import numpy as np
import torch


def stream_seed(seed: int, *name: str | int) -> np.random.SeedSequence:
    """Seed of the stream with the given name, such as ("batch", task, iteration)."""
    path = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in name]
    # the length distinguishes ("a",) from ("a", 0), which numpy would pad to the same seed
    return np.random.SeedSequence([seed, len(path), *path])


def seed_everything(seed: int) -> None:
    """Seed the global generators, which initial weights and dropout use."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def numpy_rng(seed: int, *name: str | int) -> np.random.Generator:
    """Return a numpy generator at the start of the named stream."""
    return np.random.default_rng(stream_seed(seed, *name))


def torch_generator(device: torch.device, seed: int, *name: str | int) -> torch.Generator:
    """Return a torch generator on the device at the start of the named stream."""
    state = int(stream_seed(seed, *name).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device).manual_seed(state)
