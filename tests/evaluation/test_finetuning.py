import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.evaluation.classification import FineTuning
from unshuffle.evaluation.features import find_backbone
from unshuffle.evaluation.finetuning import Classifier, Recipe, TrainingSetup, batch_items, build_sgd, fine_tune
from unshuffle.evaluation.voc.classification import multi_label_classifier
from unshuffle.models.batch_norm import fold_batch_norm
from unshuffle.models.weights import load_backbone, write_weights
from unshuffle.stopping import Stopped

QUIET = Console(quiet=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))


def batch(step: int) -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(step))


def train(recipe: Recipe, folder: Path | None = None, options: str = "", stop: int | None = None) -> nn.Module:
    model, calls = network(), 0

    def loss(inputs: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        return (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()

    fine_tune(model, recipe, batch, loss, TrainingSetup(QUIET, 0, 2, folder, options, save_every=5))
    return model


def test_the_last_loss_is_returned(tmp_path: Path) -> None:
    losses, setup = iter((3.0, 2.0, 1.5)), TrainingSetup(QUIET, 0, 1, tmp_path)
    model = network()

    def run() -> float:
        return fine_tune(model, Recipe(3, 0.1), batch, lambda x: 0 * model(x).sum() + next(losses), setup)

    assert run() == 1.5
    assert np.isnan(run()), "nothing was left to do"


def test_the_learning_rate_drops_at_the_milestones_which_scale_with_the_length() -> None:
    recipe = Recipe(80, lr=1.0, milestones=(10, 40), decay=0.5)
    assert [recipe.learning_rate(at) for at in (0, 9, 10, 39, 40, 79)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    short = recipe.changed(iterations=8, lr=2.0)
    assert short.milestones == (1, 4) and short.learning_rate(0) == 2 and recipe.changed() == recipe
    phases = Recipe(40, lr=0.1, milestones=(10, 30), lrs=(0.1, 0.02, 0.001))
    short = phases.changed(iterations=4, lr=0.2)
    assert [short.learning_rate(at) for at in range(4)] == pytest.approx([0.2, 0.04, 0.04, 0.002])
    assert phases.changed() == phases


def test_biases_have_twice_the_learning_rate_and_no_weight_decay() -> None:
    model, recipe = network(), Recipe(1, lr=0.1, momentum=0.0, weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    fine_tune(model, recipe, batch, lambda inputs: sum(p.sum() for p in model.parameters()), TrainingSetup(QUIET, 0, 1))
    for name, parameter in model.named_parameters():
        step = 0.2 if name.endswith("bias") else 0.1 * (1 + 0.5 * before[name])
        torch.testing.assert_close(parameter.detach(), before[name] - step)


def test_frozen_parameters_are_not_trained() -> None:
    model = network()
    model[0].requires_grad_(False)
    groups = build_sgd(model, Recipe(1, lr=0.1)).param_groups
    assert [len(group["params"]) for group in groups] == [1, 1]


def test_accumulation_is_one_step_on_the_mean() -> None:
    one, other = network().eval(), network().eval()
    both = [batch(0), batch(1)]
    recipe = Recipe(1, lr=0.1, accumulate=2)
    one[1], other[1] = nn.Identity(), nn.Identity()
    fine_tune(one, recipe, batch, lambda x: one(x).square().mean(), TrainingSetup(QUIET, 0, 1))
    whole = Recipe(1, lr=0.1)
    fine_tune(other, whole, lambda _: torch.cat(both), lambda x: other(x).square().mean(), TrainingSetup(QUIET, 0, 1))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_the_gradient_is_clipped() -> None:
    model = nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    recipe = Recipe(1, lr=1.0, momentum=0, weight_decay=0, clip=0.5)
    fine_tune(model, recipe, batch, lambda _: 100 * model.weight.sum(), TrainingSetup(QUIET, 0, 1))
    assert float((model.weight.detach() - before).norm()) == pytest.approx(0.5, rel=1e-4)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    recipe = Recipe(13, lr=0.05, milestones=(6,))
    whole = train(recipe)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, stop=8)
    resumed = train(recipe, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    train(Recipe(5, lr=0.05), tmp_path, "one")
    with pytest.raises(UserError, match="other options"):
        train(Recipe(5, lr=0.05), tmp_path, "other")


def test_a_damaged_checkpoint_means_to_start_again(tmp_path: Path) -> None:
    recipe = Recipe(13, lr=0.05, milestones=(6,))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, stop=8)
    (path,) = tmp_path.glob("*.pt")
    path.write_bytes(path.read_bytes()[:-10])
    parameters = zip(train(recipe).parameters(), train(recipe, tmp_path).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in parameters)


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    model = network()
    with pytest.raises(UserError, match="lower the learning rate"):
        fine_tune(model, Recipe(20, lr=1.0), batch, lambda x: model(x).mean() / 0, TrainingSetup(QUIET, 0, 1))


def test_every_item_once_in_each_epoch() -> None:
    items = np.concatenate([batch_items(3, 7, step, 4) for step in range(7)])  # 28 samples: four epochs of seven
    assert all(sorted(epoch) == list(range(7)) for epoch in items.reshape(4, 7))
    assert len({tuple(epoch) for epoch in items.reshape(4, 7)}) > 1
    assert np.array_equal(batch_items(3, 7, 2, 4), batch_items(3, 7, 2, 4))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_and_saves(tmp_path: Path, signum: int) -> None:
    recipe = Recipe(13, lr=0.05, milestones=(6,))
    model, calls = network(), 0

    def loss(inputs: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            signal.raise_signal(signum)
        return (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()

    with pytest.raises(Stopped, match="at iteration 8 of 13") as stop:
        fine_tune(model, recipe, batch, loss, TrainingSetup(QUIET, 0, 2, tmp_path, save_every=1000))
    assert stop.value.signum == signum and [path.name for path in tmp_path.iterdir()] == ["00000008.pt"]
    resumed = train(recipe, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(train(recipe).parameters(), resumed.parameters(), strict=True))


def test_a_signal_while_a_checkpoint_is_written_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = torch.save

    def disturbed(*args: object) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        save(*args)

    monkeypatch.setattr(torch, "save", disturbed)
    with pytest.raises(Stopped):
        train(Recipe(13, lr=0.05), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["00000005.pt"]


def test_one_layer_round_trip(tmp_path: Path) -> None:
    backbone = find_backbone("random:tiny")
    saved = Classifier(backbone, [nn.Linear(96 * 12 * 12, 4)], ["a", "b", "$c$", "d"]).eval()
    path = saved.save(tmp_path / "out")
    images = torch.randn(2, 3, 96, 96)
    for location in (path, path.parent):
        loaded = Classifier.load(location)
        assert list(loaded.classes) == ["a", "b", "$c$", "d"]
        assert torch.equal(loaded(images), saved(images))
    assert torch.equal(load_backbone(path)(images), backbone(images)), "it also serves as weights"


def test_folded_backbone_under_three_layers(tmp_path: Path) -> None:
    network = multi_label_classifier(fold_batch_norm(find_backbone("random:tiny")), hidden=8, init_std=0.1).eval()
    network.save(tmp_path)
    pixels = torch.randint(0, 256, (2, 96, 96, 3), dtype=torch.uint8)
    images = network.backbone.normalise(pixels.permute(0, 3, 1, 2).float() / 255)
    assert torch.allclose(Classifier.load(tmp_path)(images), network(images), atol=1e-6)


def test_fine_tuning_saves_the_tested_classifier(classes: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = classes
    options = {"weights": "random:tiny", "device": "cpu", "workers": 1, "train": train, "test": test}
    FineTuning(**options, epochs=1, batch_size=6, out=tmp_path).measure(Console(quiet=True))
    loaded = Classifier.load(tmp_path)
    assert loaded.classes == ("across", "chess", "down")
    state = torch.load(next((tmp_path / "unfinished" / "checkpoints").glob("*.pt")), weights_only=True)["network"]
    assert torch.equal(state["head.1.weight"], loaded.head[1].weight)
    assert torch.equal(state["backbone.conv1.0.weight"], loaded.backbone.state_dict()["conv1.0.weight"])


def test_files_that_are_not_classifiers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no classifier at"):
        Classifier.load(tmp_path / "nowhere")
    write_weights(find_backbone("random:tiny"), {"architecture": "tiny"}, tmp_path / "backbone.safetensors")
    with pytest.raises(ValueError, match="holds no classifier"):
        Classifier.load(tmp_path / "backbone.safetensors")
