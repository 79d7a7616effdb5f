"""What the network makes of shuffled samples."""

import numpy as np
import pytest
import torch

from unshuffle.data import shuffle
from unshuffle.report.attempts import attempt, in_place, restored_order
from unshuffle.report.snapshot import Snapshot


def put_together(shown: list[int], predicted: list[int]) -> list[int]:
    """What stands at position t was, says the network, taken from source position ψ̂[t]: so put it there."""
    restored = [-1] * len(shown)
    for position, source in enumerate(predicted):
        restored[source] = shown[position]
    return restored


def test_restored_order_against_moving_the_parts_one_by_one() -> None:
    rng = np.random.default_rng(0)
    shown, predicted = (np.stack([rng.permutation(9) for _ in range(20)]) for _ in range(2))
    restored = restored_order(torch.from_numpy(shown), torch.from_numpy(predicted))
    assert restored.tolist() == [put_together(a, b) for a, b in zip(shown.tolist(), predicted.tolist(), strict=True)]


def test_a_perfect_prediction_gives_the_sample_back() -> None:
    shown = torch.tensor([[2, 0, 3, 1], [3, 2, 1, 0]])
    parts = torch.rand(2, 4, 3, 5, 5)
    shuffled = shuffle.permute(parts, shown[:, None])[:, 0]
    back = restored_order(torch.arange(4).expand(2, 4), shown)
    assert torch.equal(shuffle.permute(shuffled, back[:, None])[:, 0], parts)
    assert restored_order(shown, shown).tolist() == [[0, 1, 2, 3]] * 2
    assert in_place(restored_order(shown, shown)).tolist() == [4, 4]


def test_in_place_counts_positions() -> None:
    assert in_place(torch.tensor([[0, 1, 2], [0, 2, 1], [1, 2, 0]])).tolist() == [3, 1, 0]


@pytest.mark.parametrize(("task", "parts"), [("spatial", 9), ("temporal", 6)])
def test_attempt_is_what_the_network_says(snapshot: Snapshot, task: str, parts: int) -> None:
    network, held_out = snapshot.network, snapshot.held_out[task]
    network.train()
    attempts = attempt(snapshot, task, 4)
    assert network.training
    assert attempts.parts.shape == (4, parts, 3, 24, 24)
    assert 0 <= attempts.parts.min() < attempts.parts.max() <= 1
    network.eval()
    for sample in range(4):
        assert torch.equal(held_out.pixels[held_out.names.index(attempts.names[sample])], attempts.pixels[sample])
        shown = attempts.shown[sample]
        crops = shuffle.normalise(attempts.parts[sample])[None]
        logits = network({task: crops}, {task: shown[None, None]})[task]
        assert torch.equal(snapshot.permutations[task][logits[0, 0].argmax()], attempts.predicted[sample])
        assert (attempts.verdict(sample) == "recognised") == torch.equal(shown, attempts.predicted[sample])
        assert attempts.recognised(sample) == torch.equal(shown, attempts.predicted[sample])
    assert torch.equal(attempt(snapshot, task, 4).shown, attempts.shown)


def test_attempt_takes_what_there_is(snapshot: Snapshot) -> None:
    assert len(attempt(snapshot, "spatial", 50)) == 6
