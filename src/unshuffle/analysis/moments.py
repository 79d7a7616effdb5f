"""What the policy saw at each validation, and what it would draw from then on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from unshuffle.analysis.history import Floats, read_states
from unshuffle.run import Run

T = TypeVar("T")


@dataclass(frozen=True)
class Moment:
    """One validation of a task."""

    iteration: int
    errors: Floats
    """(|Ψ|,) share of X_val on which each permutation was not recognised."""
    groups: npt.NDArray[np.int64] | None
    """(|Ψ|,) the group of each permutation, the hardest first; None as long as it draws from all alike."""
    probabilities: Floats | None
    """(|C|,) of the groups."""

    @property
    def sizes(self) -> Floats:
        """|c_j| / |Ψ|."""
        assert self.groups is not None and self.probabilities is not None
        return np.bincount(self.groups, minlength=len(self.probabilities)) / len(self.groups)

    @property
    def preferences(self) -> Floats:
        """(|C|,) how many times as often as by a uniform draw a permutation of each group is drawn."""
        assert self.probabilities is not None
        return np.divide(self.probabilities, self.sizes, out=np.zeros_like(self.probabilities), where=self.sizes > 0)

    @property
    def likelihoods(self) -> Floats:
        """(|Ψ|,) q(ψ) · |Ψ|: the same for each permutation."""
        assert self.groups is not None
        return self.preferences[self.groups]

    @property
    def lean(self) -> float | None:
        """How many times as often the hardest third of Ψ is drawn as the easiest third."""
        if self.groups is None:
            return None
        weights = self.likelihoods[np.argsort(-self.errors, kind="stable")]
        third = max(1, len(weights) // 3)
        easy = weights[-third:].mean()
        return float(weights[:third].mean() / easy) if easy > 0 else None


def read_moments(run: Run, task: str) -> list[Moment]:
    """The validations of a task, in their order."""
    return [_moment(state) for state in read_states(run, task, ("permutation_errors", "groups", "probabilities"))]


def _moment(state: dict[str, npt.NDArray[Any]]) -> Moment:
    groups, probabilities = state.get("groups"), state.get("probabilities")
    return Moment(
        int(state["iteration"]),
        state["permutation_errors"].astype(np.float64),
        None if groups is None else groups.astype(np.int64),
        None if probabilities is None else probabilities.astype(np.float64),
    )


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most so many of them, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(place)] for place in np.linspace(0, len(items) - 1, count)]
