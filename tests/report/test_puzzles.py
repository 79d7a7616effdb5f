"""Shuffled samples that the network puts back in order."""

import numpy as np
import pytest
import torch

from unshuffle.data.crops import normalise, permute
from unshuffle.models.heads import Head
from unshuffle.report.puzzles import Puzzles, correct_positions, restored_order, solve_puzzles
from unshuffle.report.snapshot import Snapshot
from unshuffle.tasks.base import Network


def put_together(shown: list[int], predicted: list[int]) -> list[int]:
    """By the prediction, the part at position t comes from position ψ̂[t]: put it back there."""
    restored = [-1] * len(shown)
    for position, source in enumerate(predicted):
        restored[source] = shown[position]
    return restored


def test_restored_order_against_moving_the_parts_one_by_one() -> None:
    rng = np.random.default_rng(0)
    shown, predicted = (np.stack([rng.permutation(9) for _ in range(20)]) for _ in range(2))
    restored = restored_order(torch.from_numpy(shown), torch.from_numpy(predicted))
    assert restored.tolist() == [put_together(a, b) for a, b in zip(shown.tolist(), predicted.tolist(), strict=True)]


def test_a_correct_prediction_restores_the_sample() -> None:
    shown = torch.tensor([[2, 0, 3, 1], [3, 2, 1, 0]])
    parts = torch.rand(2, 4, 3, 5, 5)
    shuffled = permute(parts, shown[:, None])[:, 0]
    back = restored_order(torch.arange(4).expand(2, 4), shown)
    assert torch.equal(permute(shuffled, back[:, None])[:, 0], parts)
    assert restored_order(shown, shown).tolist() == [[0, 1, 2, 3]] * 2
    assert correct_positions(restored_order(shown, shown)).tolist() == [4, 4]


def test_correct_positions_are_counted() -> None:
    assert correct_positions(torch.tensor([[0, 1, 2], [0, 2, 1], [1, 2, 0]])).tolist() == [3, 1, 0]


@torch.no_grad()
def classify(network: Network, task: str, crops: torch.Tensor, permutation: torch.Tensor) -> torch.Tensor:
    """Return the logits of one sample whose parts are permuted one by one, step by step."""
    head = network.heads[task]
    assert isinstance(head, Head)
    features = network.backbone(crops[0]).flatten(1)
    embeddings = head.embed(features[None])
    return head.classify(torch.stack([embeddings[0, int(part)] for part in permutation])[None])[0]


@pytest.mark.parametrize(("task", "parts"), [("spatial", 9), ("temporal", 6)])
def test_predictions_are_those_of_the_network(snapshot: Snapshot, task: str, parts: int) -> None:
    network, held_out = snapshot.network, snapshot.held_out[task]
    network.train()
    puzzles = solve_puzzles(snapshot, task, 4)
    assert network.training
    assert puzzles.parts.shape == (4, parts, 3, 24, 24)
    assert 0 <= puzzles.parts.min() < puzzles.parts.max() <= 1
    network.eval()
    for sample in range(4):
        assert torch.equal(held_out.pixels[held_out.names.index(puzzles.names[sample])], puzzles.pixels[sample])
        shown = puzzles.shown[sample]
        crops = normalise(puzzles.parts[sample])[None]
        logits = classify(network, task, crops, shown)
        assert torch.equal(snapshot.ordering_tasks[task].permutations[logits.argmax()], puzzles.predicted[sample])
        assert (puzzles.verdict(sample) == "recognised") == torch.equal(shown, puzzles.predicted[sample])
        assert puzzles.is_solved(sample) == torch.equal(shown, puzzles.predicted[sample])
    assert torch.equal(solve_puzzles(snapshot, task, 4).shown, puzzles.shown)


def test_there_are_no_more_puzzles_than_samples(snapshot: Snapshot) -> None:
    assert len(solve_puzzles(snapshot, "spatial", 50)) == 6


def test_right_and_wrong_in_equal_parts() -> None:
    shown = torch.tensor([[0, 1], [1, 0]] * 4)
    predicted = shown.clone()
    predicted[[1, 4, 5, 7]] = predicted[[1, 4, 5, 7]].flip(1)
    pixels = torch.arange(8)[:, None, None, None, None]
    puzzles = Puzzles([f"{number}" for number in range(8)], pixels, torch.arange(8), shown, predicted)
    assert puzzles.solved == [0, 2, 3, 6]
    few = puzzles.right_and_wrong(4)
    assert few.names == ["0", "2", "1", "4"] and few.solved == [0, 1] and few.pixels.flatten().tolist() == [0, 2, 1, 4]
    assert puzzles.right_and_wrong(5).names == ["0", "2", "3", "1", "4"]
    assert puzzles.subset([0, 2, 3]).right_and_wrong(2).names == ["0", "2"], "nothing is wrong"
    assert puzzles.subset([1, 4, 0]).right_and_wrong(3).names == ["0", "1", "4"], "most are wrong"
    assert puzzles.right_and_wrong(50).solved == [0, 1, 2, 3] and len(puzzles.right_and_wrong(50)) == 8
