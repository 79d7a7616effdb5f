"""What the policy saw at each validation, and what it would draw from then on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from unshuffle.analysis.history import Floats, read_states
from unshuffle.analysis.trials import read_trials
from unshuffle.config import Config
from unshuffle.run import Run

T = TypeVar("T")


@dataclass(frozen=True)
class Moment:
    """One validation of a task."""

    iteration: int
    errors: Floats
    """(|Ψ|,) share of X_val on which each permutation was not recognised."""
    groups: npt.NDArray[np.int64] | None
    """(|Ψ|,) the group of each permutation, the hardest first; None if the groups are of pairs."""
    probabilities: Floats | None
    """(|C|,) share of the draws that each group gets from here on; None as long as all are drawn alike."""

    @property
    def acts(self) -> bool:
        """Does the policy choose from here on?"""
        return self.probabilities is not None

    @property
    def sizes(self) -> Floats:
        """|c_j| / |Ψ|; groups of pairs are equally large."""
        assert self.probabilities is not None
        count = len(self.probabilities)
        if self.groups is None:
            return np.full(count, 1 / count)
        return np.bincount(self.groups, minlength=count) / len(self.groups)

    @property
    def preferences(self) -> Floats:
        """(|C|,) how many times as often as by a uniform draw a permutation, or a pair, of each group is drawn."""
        assert self.probabilities is not None
        return np.divide(self.probabilities, self.sizes, out=np.zeros_like(self.probabilities), where=self.sizes > 0)

    @property
    def likelihoods(self) -> Floats:
        """(|Ψ|,) q(ψ) · |Ψ|: the same for each permutation."""
        assert self.groups is not None
        return self.preferences[self.groups]

    @property
    def ends(self) -> tuple[float, float]:
        """Preferences for the hardest third of Ψ and for the easiest; of pairs, for the hardest and easiest group."""
        if self.groups is None:
            return float(self.preferences[0]), float(self.preferences[-1])
        weights = self.likelihoods[np.argsort(-self.errors, kind="stable")]
        third = max(1, len(weights) // 3)
        return float(weights[:third].mean()), float(weights[-third:].mean())


def chooses_pairs(config: Config) -> bool:
    """Are the groups made of each sample's own pairs, so that no permutation belongs to one?"""
    return config.policy.grouping == "pairs" and config.policy.sampler != "uniform"


def read_moments(run: Run, task: str) -> list[Moment]:
    """The validations of a task, in their order."""
    names = ("permutation_errors", "groups", "probabilities")
    tried = {entry["iteration"]: np.array(entry["probability"]) for entry in read_trials(run, task)}
    moments = []
    for state in read_states(run, task, names):
        # rollouts change the probabilities after the state was written
        planned = tried.get(int(state["iteration"]), state.get("probabilities"))
        moments.append(_moment(state, planned, run.config))
    return moments


def _moment(state: dict[str, npt.NDArray[Any]], drawn: npt.NDArray[Any] | None, config: Config) -> Moment:
    groups = state.get("groups")
    probabilities = None if drawn is None else drawn.astype(np.float64)
    if probabilities is not None and chooses_pairs(config):
        probabilities = pair_shares(probabilities, config.policy.candidates)
    return Moment(
        int(state["iteration"]),
        state["permutation_errors"].astype(np.float64),
        None if groups is None else groups.astype(np.int64),
        probabilities,
    )


def pair_shares(probabilities: Floats, candidates: int) -> Floats:
    """(|C|,) share of the draws that each group of pairs gets, when one in so many candidates is drawn.

    The draws of a sample are without replacement, and each group holds an equal part of its candidates: what is
    preferred runs short. A candidate of weight w has been drawn by the time t with the probability 1 − exp(−w t),
    and t is when one in so many of all is. For few candidates that is an approximation.
    """
    if candidates == 1:  # all are drawn
        return np.full(len(probabilities), 1 / len(probabilities))
    weights = np.maximum(probabilities, 1e-9)  # the least preferred are drawn when nothing else is left

    def drawn(time: float) -> Floats:
        return np.asarray(-np.expm1(-weights * time))

    low, high = 0.0, 1.0
    while drawn(high).mean() < 1 / candidates:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if drawn(middle).mean() < 1 / candidates else (low, middle)
    shares: Floats = drawn(high) / drawn(high).sum()
    return shares


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most so many of them, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(place)] for place in np.linspace(0, len(items) - 1, count)]
