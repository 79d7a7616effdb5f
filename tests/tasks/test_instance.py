import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import Config
from unshuffle.data.squares import RankSlice, Squares
from unshuffle.data.synthetic import SyntheticSource, synthetic_images
from unshuffle.errors import UserError
from unshuffle.models import build_backbone
from unshuffle.options import merge
from unshuffle.tasks import instance
from unshuffle.tasks.base import Inputs, Network
from unshuffle.tasks.instance import InstanceTask, InstanceValidation, chance_error, compare, project


def squares(batch: int = 4, frames: int = 1, side: int = 30) -> Squares:
    pixels = np.random.default_rng(0).integers(0, 256, (batch, frames, side, side, 3), dtype=np.uint8)
    return Squares.of(torch.from_numpy(pixels))


def network(config: Config) -> Network:
    torch.manual_seed(0)
    return Network(build_backbone("tiny"), {"instance": InstanceTask(config)})


def with_options(config: Config, **options: object) -> Config:
    return replace(config, instance=replace(config.instance, **options))  # type: ignore[arg-type]


def nt_xent_by_loop(projections: Tensor, temperature: float) -> tuple[float, float]:
    """Equation (1) of SimCLR, and how often the positive is the most similar; (B, 2, D) of any length."""
    views = [view.double() for sample in projections for view in sample]
    losses, hits = [], []
    for i, anchor in enumerate(views):
        partner = i + 1 if i % 2 == 0 else i - 1
        cosines = {k: float(anchor @ other / anchor.norm() / other.norm()) for k, other in enumerate(views) if k != i}
        denominator = sum(math.exp(cosine / temperature) for cosine in cosines.values())
        losses.append(-math.log(math.exp(cosines[partner] / temperature) / denominator))
        hits.append(max(cosines, key=cosines.__getitem__) == partner)
    return float(np.mean(losses)), float(np.mean(hits))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_loss_and_accuracy_against_the_formula(config: Config, temperature: float) -> None:
    net = network(with_options(config, temperature=temperature)).eval()
    crops = net.tasks["instance"].crops(squares(7), torch.Generator().manual_seed(1))
    assert crops.shape == (7, 2, 3, 24, 24)
    outcome = net({"instance": Inputs(crops)})["instance"]
    features = net.features({"instance": crops})["instance"]
    projections = torch.stack([net.heads["instance"](sample) for sample in features]).detach()
    loss, accuracy = nt_xent_by_loop(projections, temperature)
    assert float(outcome.loss.detach()) == pytest.approx(loss, rel=1e-5)
    assert float(outcome.accuracy) == pytest.approx(accuracy) and outcome.sampled == {}


def test_loss_against_lightly(config: Config) -> None:
    loss = pytest.importorskip("lightly.loss")
    net = network(config).eval()
    features = torch.randn(
        6, 2, net.tasks["instance"].features(net.backbone), generator=torch.Generator().manual_seed(0)
    )
    outcome = net.tasks["instance"].outcome(net.heads["instance"], features, {})
    first, second = (net.heads["instance"](view) for view in features.unbind(1))
    expected = loss.NTXentLoss(temperature=config.instance.temperature)(first, second)
    torch.testing.assert_close(outcome.loss, expected)


def test_the_projection_head_is_that_of_lightly(config: Config) -> None:
    heads = pytest.importorskip("lightly.models.modules.heads")
    own = InstanceTask(config).build_head(10)
    theirs = heads.SimCLRProjectionHead(10, config.instance.hidden, config.instance.output)
    assert [type(layer) for layer in own.children()] == [type(layer) for layer in theirs.layers]
    shapes = [[weight.shape for weight in head.parameters()] for head in (own, theirs)]
    assert shapes[0] == shapes[1]


def test_slices_of_a_batch_give_the_loss_of_the_whole() -> None:
    """What each of two processes computes, without processes."""
    whole = F.normalize(torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0)), dim=2)
    similarities, partners = compare(whole, whole, 0)
    assert similarities.shape == (12, 12) and similarities.diagonal().isneginf().all()
    for first in (0, 3):
        own, own_partners = compare(whole[first : first + 3], whole, first)
        torch.testing.assert_close(own, similarities[2 * first : 2 * first + 6])
        assert torch.equal(own_partners, partners[2 * first : 2 * first + 6])


def test_projections_have_length_one(config: Config) -> None:
    head = InstanceTask(config).build_head(9)
    projections = project(head, torch.randn(5, 2, 9))
    assert projections.shape == (5, 2, config.instance.output)
    torch.testing.assert_close(projections.norm(dim=2), torch.ones(5, 2))


def test_random_views_follow_the_seed_and_the_slice(config: Config) -> None:
    task = InstanceTask(config)
    whole = task.crops(squares(), torch.Generator().manual_seed(1))
    assert torch.equal(whole, task.crops(squares(), torch.Generator().manual_seed(1)))
    assert not torch.equal(whole, task.crops(squares(), torch.Generator().manual_seed(2)))
    own = Squares.of(squares().pixels().unflatten(0, (4, 1))[2:])
    part = task.crops(own, torch.Generator().manual_seed(1), RankSlice(1, 2))
    torch.testing.assert_close(part, whole[2:], rtol=0, atol=1e-4)


def test_crops_are_normalised(config: Config) -> None:
    crops = InstanceTask(config).crops(squares(), torch.Generator().manual_seed(1))
    std, mean = torch.std_mean(crops, dim=(3, 4), correction=0)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-4)
    assert (std < 1.001).all() and std.median() > 0.99


def error_by_loop(projections: Tensor) -> float:
    return 1 - nt_xent_by_loop(projections, 1.0)[1]


def test_validation_compares_all_samples(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(config)
    task = net.tasks["instance"]
    crops = task.crops(squares(7))
    whole = task.validate(net, [crops])
    assert whole.chance == pytest.approx(1 - 1 / 13) and whole.is_finite
    merged = task.merge([task.validate(net, [crops[:2], crops[2:4]]), task.validate(net, [crops[4:]])])
    torch.testing.assert_close(merged.projections, whole.projections)
    assert whole.error == merged.error == pytest.approx(error_by_loop(whole.projections))
    monkeypatch.setattr(instance, "CHUNK", 3)
    assert InstanceValidation(whole.projections).error == whole.error


def test_chance_is_what_random_projections_reach(config: Config) -> None:
    projections = F.normalize(torch.randn(2000, 2, 8, generator=torch.Generator().manual_seed(0)), dim=2)
    errors = [InstanceValidation(chunk).error for chunk in projections.split(10)]
    assert np.mean(errors) == pytest.approx(chance_error(10), abs=0.01)
    assert InstanceTask(config).chance == chance_error(4) == pytest.approx(1 - 1 / 7), "of a batch of 4"


def test_overflow_is_noticed(config: Config) -> None:
    net = network(config)
    torch.nn.init.constant_(net.heads["instance"][4].bias, torch.nan)  # type: ignore[index]
    task = net.tasks["instance"]
    assert not task.validate(net, [task.crops(squares())]).is_finite


def test_two_frames_of_a_clip_are_the_views(config: Config) -> None:
    config = with_options(config, positives="frames", frame_span=3)
    task = InstanceTask(config)
    assert task.medium == "videos" and task.min_frames == 2 and InstanceTask(Config()).medium == "images"
    clips = np.random.default_rng(0).integers(0, 256, (5, 9, 20, 27, 3), dtype=np.uint8)
    source = SyntheticSource(list("abcde"), np.zeros(5, np.int64), ("noise",), clips)
    samples = task.samples_of(source, np.arange(5))
    assert (samples.frames, samples.side, samples.span) == (2, 20, 3)
    windows = samples.random_windows(np.arange(5), np.random.default_rng(1))
    gaps = np.diff(windows.frames, axis=1)
    assert (gaps >= 1).all() and (gaps <= 2).all()
    crops = task.crops(Squares.of(samples.read(windows)), torch.Generator().manual_seed(0))
    assert crops.shape == (5, 2, 3, 24, 24)
    plain = with_options(config, views=replace(config.instance.views, scale=(1.0, 1.0), jitter=0.0, hflip=0.0,
                                               ratio=(1.0, 1.0), grayscale=0.0, blur=0.0))  # fmt: skip
    pictures = InstanceTask(plain).pictures(samples.read(windows), 20)
    expected = samples.read(windows).permute(0, 1, 4, 2, 3) / 255
    torch.testing.assert_close(pictures, expected, rtol=0, atol=1e-5)


def test_frames_need_videos(config: Config) -> None:
    task = InstanceTask(with_options(config, positives="frames"))
    no_videos = SimpleNamespace(images=object(), videos=None)
    with pytest.raises(UserError, match="the instance task needs videos: give --videos"):
        task.samples(no_videos)  # type: ignore[arg-type]


def test_a_few_images_are_memorised(config: Config) -> None:
    config = merge(config, {"instance": {"hidden": 64, "output": 16, **InstanceTask.easier(10)}})
    net = network(config).train()
    task = net.tasks["instance"]
    pixels = Squares.of(torch.from_numpy(synthetic_images(16, 48, seed=0).pixels))
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    accuracies = []
    for _ in range(60):
        optimiser.zero_grad()
        outcome = net({"instance": Inputs(task.crops(pixels, generator))})["instance"]
        outcome.loss.backward()
        optimiser.step()
        accuracies.append(float(outcome.accuracy))
    assert accuracies[0] < 0.5 < 0.9 < np.mean(accuracies[-10:])


@pytest.mark.parametrize("frames", [1, 2])
def test_examples_are_the_views_and_the_nearest_one(config: Config, frames: int) -> None:
    config = with_options(config, positives="frames" if frames == 2 else "views")
    net, pixels = network(config), squares(6, frames).pixels().unflatten(0, (6, frames))
    task = net.tasks["instance"]
    examples = task.examples(net, pixels, 24, torch.Generator())
    views = task.pictures(pixels, 24).flatten(0, 1)
    projections = task.validate(net, [task.crops(squares(6, frames))]).projections.flatten(0, 1)  # type: ignore[attr-defined]
    for sample, example in enumerate(examples):
        cosines = {k: float(projections[2 * sample] @ other) for k, other in enumerate(projections) if k != 2 * sample}
        nearest = max(cosines, key=cosines.__getitem__)
        wanted = [views[2 * sample], views[2 * sample + 1], views[nearest]]
        assert all(torch.equal(*pair) for pair in zip(example.pictures.values(), wanted, strict=True))
        assert example.right == (nearest == 2 * sample + 1)
        assert example.answer == ("finds its other view" if example.right else "finds another image")
    assert len(examples) == 6 and not all(example.right for example in examples)
