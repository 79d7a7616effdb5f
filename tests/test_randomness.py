import subprocess
import sys

import numpy as np
import pytest
import torch

from unshuffle.randomness import numpy_rng, stream_seed, torch_generator

CPU = torch.device("cpu")
STREAMS: list[tuple[int, tuple[str | int, ...]]] = [
    (0, ()),
    (1, ()),
    (0, ("split",)),
    (0, ("split", 0)),
    (0, ("batch", 0)),
    (0, ("batch", 1)),
    (1, ("batch", 1)),
    (0, ("batch", "spatial", 1)),
    (0, ("batch", "temporal", 1)),
    (0, ("epoch", "spatial", 1)),
    (0, ("spatial", "batch", 1)),
    (2**40, ("batch", 2**33)),
]


def numpy_sample(seed: int, name: tuple[str | int, ...]) -> tuple[int, ...]:
    return tuple(numpy_rng(seed, *name).integers(2**60, size=4).tolist())


def torch_sample(seed: int, name: tuple[str | int, ...]) -> tuple[int, ...]:
    return tuple(torch.randint(2**60, (4,), generator=torch_generator(CPU, seed, *name)).tolist())


@pytest.mark.parametrize("sample", [numpy_sample, torch_sample])
def test_a_stream_depends_on_seed_and_name_only(sample) -> None:
    first = [sample(*stream) for stream in STREAMS]
    assert [sample(*stream) for stream in reversed(STREAMS)] == first[::-1]
    assert len(set(first)) == len(STREAMS)


def test_a_thousand_steps_have_a_thousand_streams() -> None:
    states = {torch_generator(CPU, 0, "step", step).initial_seed() for step in range(1000)}
    assert len(states) == 1000
    means = [numpy_rng(0, "step", step).random() for step in range(1000)]
    assert abs(np.mean(means) - 0.5) < 0.04 and abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.1


def test_global_generators_are_unchanged() -> None:
    state = torch.get_rng_state()
    numpy_rng(0, "a").random()
    torch.rand(3, generator=torch_generator(CPU, 0, "a"))
    assert torch.equal(torch.get_rng_state(), state)


def test_streams_do_not_depend_on_the_process() -> None:
    """The hash of a string, by contrast, differs from process to process."""
    code = "from unshuffle.randomness import stream_seed; print(stream_seed(3, 'batch', 5).generate_state(2).tolist())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(stream_seed(3, "batch", 5).generate_state(2).tolist())
