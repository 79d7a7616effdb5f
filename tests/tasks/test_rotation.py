from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from unshuffle.config import Config
from unshuffle.data.squares import RankSlice, Squares
from unshuffle.data.synthetic import synthetic_images
from unshuffle.models import build_backbone
from unshuffle.tasks.base import Inputs, Network
from unshuffle.tasks.rotation import RotationTask


def squares(batch: int = 4, side: int = 30) -> Squares:
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 1, side, side, 3), dtype=np.uint8)
    return Squares.of(torch.from_numpy(pixels))


def network(config: Config) -> Network:
    torch.manual_seed(0)
    return Network(build_backbone("tiny"), {"rotation": RotationTask(config)})


def test_each_part_is_the_crop_turned_by_a_further_quarter(config: Config) -> None:
    crops = RotationTask(config).crops(squares())
    assert crops.shape == (4, 4, 3, 24, 24)
    for image in crops.numpy():
        for turns in range(4):
            expected = np.stack([np.rot90(channel, turns) for channel in image[0]])
            np.testing.assert_array_equal(image[turns], expected)


def test_the_upright_crop_is_the_centre_of_the_image(config: Config) -> None:
    config = replace(config, rotation=replace(config.rotation, crop_fraction=0.8))
    task = RotationTask(config)
    picture = task.pictures(squares().pixels().unflatten(0, (4, 1)), 24)[:, 0]
    expected = squares().pixels()[:, 3:27, 3:27].permute(0, 3, 1, 2) / 255
    np.testing.assert_allclose(picture, expected, atol=1e-5)


def test_random_crops_follow_the_seed_and_the_slice(config: Config) -> None:
    task = RotationTask(config)
    whole = task.crops(squares(), torch.Generator().manual_seed(1))
    assert torch.equal(whole, task.crops(squares(), torch.Generator().manual_seed(1)))
    assert not torch.equal(whole, task.crops(squares(), torch.Generator().manual_seed(2)))
    own = Squares.of(squares().pixels().unflatten(0, (4, 1))[2:])
    part = task.crops(own, torch.Generator().manual_seed(1), RankSlice(1, 2))
    torch.testing.assert_close(part, whole[2:], rtol=0, atol=1e-5)


def test_loss_and_accuracy_against_a_loop(config: Config) -> None:
    net = network(config).eval()
    crops = net.tasks["rotation"].crops(squares())
    outcome = net({"rotation": Inputs(crops)})["rotation"]
    features = net.features({"rotation": crops})["rotation"]
    losses, hits = [], []
    for image in features:
        for turns, row in enumerate(image):
            logits = net.heads["rotation"](row)
            losses.append(F.cross_entropy(logits[None], torch.tensor([turns])))
            hits.append(int(logits.argmax()) == turns)
    torch.testing.assert_close(outcome.loss, torch.stack(losses).mean())
    assert float(outcome.accuracy) == pytest.approx(np.mean(hits)) and outcome.sampled == {}


def test_validation_counts_every_rotation_of_every_sample(config: Config) -> None:
    net = network(config)
    task = net.tasks["rotation"]
    crops = task.crops(squares(6))
    whole = task.validate(net, [crops])
    assert whole.chance == 0.75 and whole.is_finite
    slices = [task.validate(net, [crops[:4]]), task.validate(net, [crops[4:]])]
    assert task.merge(slices).error == pytest.approx(whole.error)
    with net.evaluation_mode():
        outcome = net({"rotation": Inputs(crops)})["rotation"]
    assert whole.error == pytest.approx(1 - float(outcome.accuracy))


def test_overflow_is_noticed(config: Config) -> None:
    net = network(config)
    torch.nn.init.constant_(net.heads["rotation"][2].bias, torch.nan)  # type: ignore[index]
    task = net.tasks["rotation"]
    assert not task.validate(net, [task.crops(squares())]).is_finite


def test_a_few_images_are_memorised(config: Config) -> None:
    net = network(config).train()
    crops = net.tasks["rotation"].crops(Squares.of(torch.from_numpy(synthetic_images(16, 48, seed=0).pixels)))
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(60):
        optimiser.zero_grad()
        outcome = net({"rotation": Inputs(crops)})["rotation"]
        outcome.loss.backward()
        optimiser.step()
    assert outcome.accuracy == 1


def test_examples_are_what_the_network_answers(config: Config) -> None:
    net, pixels = network(config), squares(8).pixels().unflatten(0, (8, 1))
    task = net.tasks["rotation"]
    examples = task.examples(net, pixels, 24, torch.Generator().manual_seed(0))
    upright, crops = task.pictures(pixels, 24)[:, 0], task.crops(squares(8))
    net.eval()
    answers = []
    for image, turned, example in zip(upright, crops, examples, strict=True):
        turns = next(t for t in range(4) if torch.equal(image.rot90(t, (1, 2)), example.pictures["rotated"]))
        logits = net.heads["rotation"](net.backbone(turned[turns][None]).flatten(1))
        answers.append((turns, int(logits.argmax())))
        assert torch.equal(example.pictures["turned back"], image.rot90(turns - answers[-1][1], (1, 2)))
        assert example.right == (turns == answers[-1][1])
        assert example.answer.startswith(f"rotated by {90 * turns}°")
        assert example.answer.endswith(f"{90 * turns}°" if example.right else f", not {90 * answers[-1][1]}°")
    assert len({turns for turns, _ in answers}) > 1 and any(turns != answer for turns, answer in answers)
    again = task.examples(net, pixels, 24, torch.Generator().manual_seed(0))
    assert [example.answer for example in again] == [example.answer for example in examples]
