import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.evaluation.fine_tuning import Recipe, Workshop, build_sgd, drawn, fine_tune
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

    fine_tune(model, recipe, batch, loss, Workshop(QUIET, 0, 2, folder, options, save_every=5))
    return model


def test_the_last_loss_is_told(tmp_path: Path) -> None:
    losses, workshop = iter((3.0, 2.0, 1.5)), Workshop(QUIET, 0, 1, tmp_path)
    model = network()

    def run() -> float:
        return fine_tune(model, Recipe(3, 0.1), batch, lambda x: 0 * model(x).sum() + next(losses), workshop)

    assert run() == 1.5
    assert np.isnan(run()), "nothing was left to do"


def test_the_rate_drops_where_the_recipe_says_and_moves_with_its_length() -> None:
    recipe = Recipe(80, lr=1.0, milestones=(10, 40), decay=0.5)
    assert [recipe.rate(at) for at in (0, 9, 10, 39, 40, 79)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    short = recipe.changed(iterations=8, lr=2.0)
    assert short.milestones == (1, 4) and short.rate(0) == 2 and recipe.changed() == recipe


def test_biases_learn_twice_as_fast_and_do_not_decay() -> None:
    model, recipe = network(), Recipe(1, lr=0.1, momentum=0.0, weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    fine_tune(model, recipe, batch, lambda inputs: sum(p.sum() for p in model.parameters()), Workshop(QUIET, 0, 1))
    for name, parameter in model.named_parameters():
        step = 0.2 if name.endswith("bias") else 0.1 * (1 + 0.5 * before[name])
        torch.testing.assert_close(parameter.detach(), before[name] - step)


def test_what_is_frozen_is_left_alone() -> None:
    model = network()
    model[0].requires_grad_(False)
    groups = build_sgd(model, Recipe(1, lr=0.1)).param_groups
    assert [len(group["params"]) for group in groups] == [1, 1]


def test_accumulation_is_one_step_on_the_mean() -> None:
    one, other = network().eval(), network().eval()
    both = [batch(0), batch(1)]
    recipe = Recipe(1, lr=0.1, accumulate=2)
    one[1], other[1] = nn.Identity(), nn.Identity()
    fine_tune(one, recipe, batch, lambda x: one(x).square().mean(), Workshop(QUIET, 0, 1))
    whole = Recipe(1, lr=0.1)
    fine_tune(other, whole, lambda _: torch.cat(both), lambda x: other(x).square().mean(), Workshop(QUIET, 0, 1))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_the_gradient_is_clipped() -> None:
    model = nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    recipe = Recipe(1, lr=1.0, momentum=0, weight_decay=0, clip=0.5)
    fine_tune(model, recipe, batch, lambda _: 100 * model.weight.sum(), Workshop(QUIET, 0, 1))
    assert float((model.weight.detach() - before).norm()) == pytest.approx(0.5, rel=1e-4)


def test_broken_off_and_resumed_equals_unbroken(tmp_path: Path) -> None:
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


def test_a_loss_that_explodes_is_said() -> None:
    model = network()
    with pytest.raises(UserError, match="lower the learning rate"):
        fine_tune(model, Recipe(20, lr=1.0), batch, lambda x: model(x).mean() / 0, Workshop(QUIET, 0, 1))


def test_every_item_once_in_each_epoch() -> None:
    items = np.concatenate([drawn(3, 7, step, 4) for step in range(7)])  # 28 draws: four epochs of seven
    assert all(sorted(epoch) == list(range(7)) for epoch in items.reshape(4, 7))
    assert len({tuple(epoch) for epoch in items.reshape(4, 7)}) > 1
    assert np.array_equal(drawn(3, 7, 2, 4), drawn(3, 7, 2, 4))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_heeded_after_the_step_and_saves(tmp_path: Path, signum: int) -> None:
    recipe = Recipe(13, lr=0.05, milestones=(6,))
    model, calls = network(), 0

    def loss(inputs: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            signal.raise_signal(signum)
        return (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()

    with pytest.raises(Stopped, match="at iteration 8 of 13") as stop:
        fine_tune(model, recipe, batch, loss, Workshop(QUIET, 0, 2, tmp_path, save_every=1000))
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
