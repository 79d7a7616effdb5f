"""Random streams that are functions of the seed and of where they are used.

Nothing here advances a hidden state: the draws of iteration 7,000 are the same whether the run was broken off before it
or not, and however many threads prepare batches ahead of time.
"""

import random
import zlib

import numpy as np
import torch


def stream_seed(seed: int, *where: str | int) -> np.random.SeedSequence:
    """The seed of the stream named by `where`, such as ("batch", "spatial", iteration)."""
    path = [zlib.crc32(w.encode()) if isinstance(w, str) else w for w in where]
    # the length tells ("a",) from ("a", 0), which numpy would pad to the same seed
    return np.random.SeedSequence([seed, len(path), *path])


def seed_everything(seed: int) -> None:
    """Seed the global generators, for what draws from them: the weights of a new network, dropout."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def numpy_rng(seed: int, *where: str | int) -> np.random.Generator:
    """A numpy generator at the start of the named stream."""
    return np.random.default_rng(stream_seed(seed, *where))


def torch_generator(device: torch.device, seed: int, *where: str | int) -> torch.Generator:
    """A torch generator on the device at the start of the named stream."""
    state = int(stream_seed(seed, *where).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device).manual_seed(state)
