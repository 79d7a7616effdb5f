"""The policy's story: what it preferred, when, and how that was rewarded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unshuffle.analysis.history import read_states
from unshuffle.run import Run

MOMENTS = 120  # of a slider; a finer one cannot be held by a finger
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moment:
    """What the policy saw at a validation, and what it would draw from then on."""

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
    def lean(self) -> float | None:
        """How many times as often the hardest third of Ψ is drawn as the easiest third."""
        if self.groups is None:
            return None
        weights = self.preferences[self.groups][np.argsort(-self.errors, kind="stable")]
        third = max(1, len(weights) // 3)
        easy = weights[-third:].mean()
        return float(weights[:third].mean() / easy) if easy > 0 else None


def read_moments(run: Run, task: str, most: int = MOMENTS) -> list[Moment]:
    """The validations of a task, evenly thinned if there are more than so many; the last one is always there."""
    states = list(read_states(run, task, ("permutation_errors", "groups", "probabilities")))
    chosen = np.linspace(0, len(states) - 1, min(most, len(states))).round().astype(int).tolist()
    return [_moment(states[position]) for position in chosen]


def _moment(state: dict[str, npt.NDArray[Any]]) -> Moment:
    groups, probabilities = state.get("groups"), state.get("probabilities")
    if groups is None or probabilities is None:
        groups = probabilities = None
    return Moment(
        int(state["iteration"]),
        state["permutation_errors"].astype(np.float64),
        None if groups is None else groups.astype(np.int64),
        None if probabilities is None else probabilities.astype(np.float64),
    )


def tell(run: Run, task: str, moments: Sequence[Moment]) -> list[str]:
    """The story in a few sentences."""
    sampler = run.config.policy.sampler
    who = "the policy" if sampler == "policy" else f"the sampler {sampler}"
    acting = [moment for moment in moments if moment.groups is not None]
    if sampler == "uniform":
        return ["No policy: every permutation was as likely as any other throughout."]
    if not acting:
        return [f"So far {who} has not begun, and every permutation was as likely as any other."]
    sentences = [
        f"From iteration {acting[0].iteration:,} on {who} chose among "
        f"{len(acting[0].sizes)} groups of equally hard permutations.",
        *_leans(acting),
        *_rewards(run, task),
    ]
    warnings = [entry for entry in run.metrics("warning") if entry.get("task") == task]
    if warnings:
        last = warnings[-1]
        sentences.append(f"{len(warnings)} warnings, the last at iteration {last['iteration']:,}: {last['text']}.")
    return sentences


def _leans(acting: Sequence[Moment]) -> list[str]:
    halves = [moments for moments in (acting[: len(acting) // 2], acting[len(acting) // 2 :]) if moments]
    told = []
    for half, name in zip(halves, ("first", "second") if len(halves) == 2 else ("",), strict=True):
        leans = [lean for moment in half if (lean := moment.lean) is not None and lean > 0]
        if leans:
            told.append((name, float(np.exp(np.mean(np.log(leans))))))
    if not told:
        return []
    parts = [f"{_times(lean)}{f' in the {name} half of its time' if name else ''}" for name, lean in told]
    return [f"The hardest third of the permutations was drawn {' and '.join(parts)}."]


def _times(lean: float) -> str:
    """Against the easiest third."""
    return (
        "as often as the easiest third" if abs(lean - 1) < 0.05 else f"{lean:.2f} times as often as the easiest third"
    )


def _rewards(run: Run, task: str) -> list[str]:
    rewards = [
        entry["reward"] for entry in run.metrics("episode") if entry["task"] == task and entry.get("reward") is not None
    ]
    if not rewards:
        return []
    good = sum(reward > 0 for reward in rewards)
    return [
        f"In {good} of {len(rewards)} episodes the error fell below its extrapolation: "
        f"the mean reward is {np.mean(rewards):+.4f}.".replace("-", "−")
    ]
