"""The policy's story: what it preferred, when, and how that was rewarded."""

from collections.abc import Sequence

import numpy as np

from unshuffle.analysis.moments import Moment, chooses_pairs
from unshuffle.analysis.trials import read_trials
from unshuffle.run import Run
from unshuffle.wording import describe_concern


def tell(run: Run, task: str, moments: Sequence[Moment]) -> list[str]:
    """The story in a few sentences."""
    sampler = run.config.policy.name
    who = "the policy" if sampler in ("reinforce", "rollouts") else f"the sampler {sampler}"
    acting = [moment for moment in moments[:-1] if moment.acts]  # nothing has been drawn since the last one
    if sampler == "uniform":
        return ["No policy: every permutation was as likely as any other throughout."]
    if not acting:
        return [f"So far {who} has not begun, and every permutation was as likely as any other."]
    sentences = [
        f"From iteration {acting[0].iteration:,} on {who} chose among {len(acting[0].sizes)} {_groups(run)}",
        *_leans(acting, "group" if chooses_pairs(run.config) else "third of the permutations"),
        *_rewards(run, task),
        *_worths(run, task),
    ]
    warnings = [entry for entry in run.metrics("warning") if entry.get("task") == task]
    if warnings:
        last = warnings[-1]
        sentences.append(
            f"{len(warnings)} warnings, the last at iteration {last['iteration']:,}: {describe_concern(last)}."
        )
    return sentences


def _groups(run: Run) -> str:
    if not chooses_pairs(run.config):
        return "groups of equally hard permutations."
    return (
        "groups of pairs of a sample and a permutation: each sample's permutations, in the order of how hard they are "
        "for it, in equal parts. So no permutation belongs to a group, and there are none to show."
    )


def _leans(acting: Sequence[Moment], what: str) -> list[str]:
    """How many times as often the hardest so-and-so was drawn as the easiest."""
    halves = [moments for moments in (acting[: len(acting) // 2], acting[len(acting) // 2 :]) if moments]
    told = []
    for half, name in zip(halves, ("first", "second") if len(halves) == 2 else ("",), strict=True):
        hard, easy = np.mean([moment.ends for moment in half], axis=0)
        if easy > 0:
            told.append((name, float(hard / easy)))
    if not told:
        return []
    easiest = f"as often as the easiest {what.split()[0]}"
    parts = [f"{_times(lean)}{easiest}{f' in the {name} half of its time' if name else ''}" for name, lean in told]
    return [f"The hardest {what} was drawn {' and '.join(parts)}."]


def _times(lean: float) -> str:
    return "" if abs(lean - 1) < 0.05 else f"{lean:.2f} times "


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


def _worths(run: Run, task: str) -> list[str]:
    trials = read_trials(run, task)
    if not trials:
        return []
    hardest = np.mean([entry["advantage"][0] for entry in trials])
    easiest = np.mean([entry["advantage"][len(entry["errors"]) - 1] for entry in trials])  # empty groups are not tried
    times = "once" if len(trials) == 1 else f"{len(trials)} times"
    return [
        f"It learned from trials, not from rewards: {times} each group was preferred for "
        f"{trials[0]['iterations']} iterations, which were then undone.",
        f"On average a draw of the hardest group was worth {hardest:+.2f} and one of the easiest {easiest:+.2f}: by "
        "how many deviations the error after the trial was below the mean of all, "
        "as far as the choice of the validation samples does not explain it.".replace("-", "−"),
    ]
