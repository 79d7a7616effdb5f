"""The worth of a draw against a slow reference, and on errors that were made with known worths."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unshuffle.policy.progress import draw_values

GROUPS = 4


def experiment(
    slopes: list[float], *, members: int = 200, noise: float = 0.02, fall: float = 0.1, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Errors before and after an episode in which a relative draw more lowers the error by a group's slope."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(slopes)), members)
    draws = rng.poisson(40, len(group)).astype(float)
    before = 0.3 + 0.1 * group / len(slopes) + 0.05 * rng.standard_normal(len(group))
    effect = np.array(slopes)[group] * (draws / draws.mean() - 1)
    after = 0.2 + 0.6 * before - fall - effect + noise * rng.standard_normal(len(group))
    return tuple(torch.from_numpy(part) for part in (before, after, draws, group))  # type: ignore[return-value]


def slow_values(before: torch.Tensor, after: torch.Tensor, draws: torch.Tensor, members: torch.Tensor) -> np.ndarray:
    """One group after another, with numpy's least squares and the formulas spelled out."""
    x, y, level = (draws / draws.mean()).numpy().copy(), -after.numpy().copy(), before.numpy().copy()
    for group in range(GROUPS):
        mine = members.numpy() == group
        for values in (x, y, level):
            values[mine] -= values[mine].mean()
    y -= np.linalg.lstsq(level[:, None], y, rcond=None)[0] * level
    slopes, spreads, squares = [], [], 0.0
    for group in range(GROUPS):
        mine = members.numpy() == group
        (slope,), *_ = np.linalg.lstsq(x[mine, None], y[mine], rcond=None)
        slopes.append(slope)
        spreads.append((x[mine] ** 2).sum())
        squares += ((y[mine] - slope * x[mine]) ** 2).sum()
    variance = squares / (len(x) - 2 * GROUPS)
    noise = [variance / spread for spread in spreads]
    common = sum(spread * slope for spread, slope in zip(spreads, slopes, strict=True)) / sum(spreads)
    weights = [1 / one for one in noise]
    mean = sum(weight * slope for weight, slope in zip(weights, slopes, strict=True)) / sum(weights)
    excess = sum(weight * (slope - mean) ** 2 for weight, slope in zip(weights, slopes, strict=True)) - (GROUPS - 1)
    between = max(0.0, excess / (sum(weights) - sum(weight**2 for weight in weights) / sum(weights)))
    values = [common + between / (between + one) * (slope - common) for one, slope in zip(noise, slopes, strict=True)]
    unit = max(common, 2 * (variance / sum(spreads)) ** 0.5)
    return np.array([1 + (value - common) / unit for value in values])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.0, 0.3), min_size=GROUPS, max_size=GROUPS), st.integers(0, 100))
def test_against_a_loop(slopes: list[float], seed: int) -> None:
    made = experiment(slopes, members=30, seed=seed)
    np.testing.assert_allclose(draw_values(*made, GROUPS), slow_values(*made), rtol=1e-4, atol=1e-5)


def test_known_worths_are_found() -> None:
    values = draw_values(*experiment([0.4, 0.2, 0.1, 0.1]), GROUPS)
    torch.testing.assert_close(values, torch.tensor([2.0, 1.0, 0.5, 0.5]), rtol=0, atol=0.15)


@pytest.mark.parametrize("fall", [-0.2, 0.0, 0.3])
def test_what_moves_all_errors_together_does_not_matter(fall: float) -> None:
    torch.testing.assert_close(
        draw_values(*experiment([0.3, 0.1, 0.1, 0.0], fall=fall), GROUPS),
        draw_values(*experiment([0.3, 0.1, 0.1, 0.0]), GROUPS),
    )


def test_noise_alone_hardly_prefers_anything() -> None:
    found = torch.stack([draw_values(*experiment([0.1] * GROUPS, seed=seed), GROUPS) for seed in range(40)])
    assert (found - 1).abs().mean() < 0.1
    nothing = torch.stack([draw_values(*experiment([0.0] * GROUPS, seed=seed), GROUPS) for seed in range(40)])
    assert (nothing - 1).abs().mean() < 0.5  # in units of twice the standard error


def test_groups_that_say_nothing_are_worth_the_average() -> None:
    before, after, draws, members = experiment([0.4, 0.2, 0.1, 0.1])
    alone = torch.where(torch.arange(len(members)) == 0, 4, members)
    values = draw_values(before, after, draws, alone, 6)
    assert values[4] == values[5] == 1
    assert draw_values(before, after, torch.ones(len(draws)), members, GROUPS).tolist() == [1.0] * GROUPS
