"""The policy's story: what it preferred, when, and how that was rewarded."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from unshuffle.analysis.moments import Moment
from unshuffle.run import Run

LEAST_WORTH = 0.05  # of an average draw, between two groups that are told apart


def tell(run: Run, task: str, moments: Sequence[Moment]) -> list[str]:
    """The story in a few sentences."""
    sampler = run.config.policy.sampler
    who = "the policy" if sampler == "policy" else f"the sampler {sampler}"
    acting = [moment for moment in moments if moment.groups is not None]
    if sampler == "uniform":
        return ["No policy: every permutation was as likely as any other throughout."]
    if not acting or acting[0] is moments[-1]:  # groups that nothing has been drawn from yet
        return [f"So far {who} has not begun, and every permutation was as likely as any other."]
    sentences = [
        f"From iteration {acting[0].iteration:,} on {who} chose among "
        f"{len(acting[0].sizes)} groups of equally hard permutations.",
        *_leans(acting),
        *_rewards(run, task),
        *_worths(run, task),
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


def progress_episodes(run: Run, task: str) -> list[dict[str, Any]]:
    """The episodes of a policy that learned from what draws were worth, and not from the rewards."""
    policy = run.config.policy
    if policy.reward != "trials" or policy.sampler not in ("policy", "inverse"):
        return []
    return [entry for entry in run.metrics("episode") if entry["task"] == task]


def _worths(run: Run, task: str) -> list[str]:
    episodes = progress_episodes(run, task)
    if not episodes:
        return []
    told = sum(np.ptp(entry["draw_value"]) > LEAST_WORTH for entry in episodes)
    return [
        "It learned from what a draw of each group was worth, not from these rewards: "
        f"in {told} of {len(episodes)} episodes draws of some groups were worth more than those of others."
    ]
