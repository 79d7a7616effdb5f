import subprocess
import sys

import numpy as np
import pytest
import torch

from unshuffle.randomness import numpy_rng, stream_seed, torch_generator

CPU = torch.device("cpu")
# All streams of one name have equally many coordinates: trailing zeros would not tell ("a",) from ("a", 0).
STREAMS: list[tuple[int, tuple[str | int, ...]]] = [
    (0, ()),
    (1, ()),
    (0, ("split",)),
    (0, ("batch", 0)),
    (0, ("batch", 1)),
    (1, ("batch", 1)),
    (0, ("batch", "spatial", 1)),
    (0, ("batch", "temporal", 1)),
    (0, ("epoch", "spatial", 1)),
    (0, ("spatial", "batch", 1)),
    (2**40, ("batch", 2**33)),
]


def numpy_draw(seed: int, where: tuple[str | int, ...]) -> tuple[int, ...]:
    return tuple(numpy_rng(seed, *where).integers(2**60, size=4).tolist())


def torch_draw(seed: int, where: tuple[str | int, ...]) -> tuple[int, ...]:
    return tuple(torch.randint(2**60, (4,), generator=torch_generator(CPU, seed, *where)).tolist())


@pytest.mark.parametrize("draw", [numpy_draw, torch_draw])
def test_a_stream_is_a_function_of_seed_and_name(draw) -> None:
    first = [draw(*stream) for stream in STREAMS]
    assert [draw(*stream) for stream in reversed(STREAMS)] == first[::-1]
    assert len(set(first)) == len(STREAMS)


def test_a_thousand_steps_have_a_thousand_streams() -> None:
    states = {torch_generator(CPU, 0, "step", step).initial_seed() for step in range(1000)}
    assert len(states) == 1000
    means = [numpy_rng(0, "step", step).random() for step in range(1000)]
    assert abs(np.mean(means) - 0.5) < 0.04 and abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.1


def test_nothing_global_is_touched() -> None:
    state = torch.get_rng_state()
    numpy_rng(0, "a").random()
    torch.rand(3, generator=torch_generator(CPU, 0, "a"))
    assert torch.equal(torch.get_rng_state(), state)


def test_names_do_not_depend_on_the_process() -> None:
    """As hash() would."""
    code = "from unshuffle.randomness import stream_seed; print(stream_seed(3, 'batch', 5).generate_state(2).tolist())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(stream_seed(3, "batch", 5).generate_state(2).tolist())
