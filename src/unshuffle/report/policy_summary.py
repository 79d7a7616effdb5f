"""The policy of a run: what it preferred and when, in sentences and as data of the page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unshuffle.analysis.difficulty import divide_samples
from unshuffle.analysis.error_map import by_mean_error
from unshuffle.report.charts import chart_values, difficulty_chart
from unshuffle.report.puzzles import highest_contrast, strip
from unshuffle.report.snapshot import Snapshot
from unshuffle.runs.history import (
    History,
    SamplingState,
    evenly_spaced,
    groups_pairs,
    is_finished,
    stored_permutations,
)
from unshuffle.runs.run import Run
from unshuffle.tasks import TASKS
from unshuffle.wording import counted, describe_concern

LITTLE, CLEAR = 0.05, 0.2
"""Fractions of the samples that a preference must move to be called a little change, and a change."""
MAX_VALIDATIONS = 120
"""Of a slider; finer steps cannot be selected by hand."""

# ---- sentences


@dataclass(frozen=True)
class PolicySummary:
    """What the sampler of a task did, in proportion to what it did."""

    conclusion: str
    """One sentence."""
    details: Sequence[str] = ()
    """Sentences for a reader who wants to know more."""
    is_clear: bool = False
    """Whether what was sampled differs clearly from uniform sampling."""

    @property
    def is_drawn(self) -> bool:
        """Whether there is a preference to draw."""
        return bool(self.details)


def summarise_policy(run: Run, task: str, states: Sequence[SamplingState]) -> PolicySummary:
    """Return what the sampler preferred and how it was rewarded."""
    sampler = run.config.policy.name
    subject = "the policy" if sampler in ("reinforce", "rollouts") else f"the sampler {sampler}"
    active = [state for state in states[:-1] if state.is_active]  # nothing has been sampled since the last one
    if sampler == "uniform":
        return PolicySummary("No policy: every permutation was equally likely throughout (uniform sampling).")
    if not active:
        return PolicySummary(_idle(run, task, states, subject))
    moved = float(np.mean([state.moved for state in active]))
    extent = "hardly changed the sampling" if moved < LITTLE else "changed the sampling"
    little = " a little" if LITTLE <= moved < CLEAR else ""
    conclusion = (
        f"{_capitalised(subject)} {extent}{little}: on average its preference moved {100 * moved:.1f} % of the samples "
        "from some groups to others, compared with uniform sampling."
    )
    details = [
        f"From iteration {active[0].iteration:,} on {subject} chose among {len(active[0].sizes)} {_groups(run)}",
        *_preferences(active, "group" if groups_pairs(run.config) else "third of the permutations"),
        *_sampled(run, task, History.of(states), active[0].iteration),
        *_variation(run),
        *_rewards(run, task),
        *_advantages(run, task),
        *_warnings(run, task),
        "One run cannot tell whether this helped: compare it with a run that samples uniformly (policy.sampler).",
    ]
    return PolicySummary(conclusion, details, moved >= CLEAR)


def _idle(run: Run, task: str, states: Sequence[SamplingState], subject: str) -> str:
    """Return why a sampler has sampled nothing by preference."""
    uniform = "every permutation was equally likely"
    if states[-1].is_active:
        return f"{_capitalised(subject)} started at the last validation; until then {uniform}."
    verb = "never started" if is_finished(run) else "has not started yet"
    validations = list(run.metrics("validation", task))
    needed = run.config.policy.start_below * validations[0]["chance"]
    lowest = min(entry["error"] for entry in validations)
    reason = f", as the lowest validation error, {lowest:.3f}, is not below {needed:.3f} (policy.start_below)"
    return f"{_capitalised(subject)} {verb}{reason if lowest >= needed else ''}: {uniform}."


def _sampled(run: Run, task: str, history: History, begin: int) -> list[str]:
    """Return which classes of difficulty were sampled most and least often since the sampler started."""
    division = divide_samples(run, history, task)
    division = replace(division, rows=[row for row in division.rows if row["iteration"] > begin])
    if not division.rows:
        return []
    percent = division.mean_percent(len(division.rows))
    most, least = max(percent, key=percent.__getitem__), min(percent, key=percent.__getitem__)
    return [
        f"Of the {division.noun} sampled since then, {percent[most]:.1f} % were of the {most} by difficulty and "
        f"{percent[least]:.1f} % of the {least}; uniform sampling gives {100 / len(percent):.1f} %."
    ]


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _warnings(run: Run, task: str) -> list[str]:
    warnings = list(run.metrics("warning", task))
    if not warnings:
        return []
    last, noun = warnings[-1], counted(len(warnings), "warnings")
    return [f"{noun}, the last at iteration {last['iteration']:,}: {describe_concern(last)}."]


def _groups(run: Run) -> str:
    if not groups_pairs(run.config):
        return "groups of equally hard permutations."
    return (
        "groups of (sample, permutation) pairs: the permutations of each sample, sorted by difficulty for that sample "
        "and divided into equal parts. No permutation belongs to a group as such, so none are shown."
    )


def _preferences(active: Sequence[SamplingState], noun: str) -> list[str]:
    """Return how many times as likely as the easiest class the hardest was."""
    halves = [half for half in (active[: len(active) // 2], active[len(active) // 2 :]) if half]
    ratios = []
    for half, name in zip(halves, ("first", "second") if len(halves) == 2 else ("",), strict=True):
        hardest, easiest = np.mean([state.extremes for state in half], axis=0)
        if easiest > 0:
            ratios.append((name, float(hardest / easiest)))
    if not ratios:
        return []
    comparison = f"as likely as the easiest {noun.split()[0]}"
    parts = [
        f"{_times(ratio)}{comparison}{f' in the {name} half of that time' if name else ''}" for name, ratio in ratios
    ]
    return [f"The hardest {noun} was {' and '.join(parts)}."]


def _variation(run: Run) -> list[str]:
    policy = run.config.policy
    if policy.sampler != "reinforce" or policy.action != "mixture":
        return []
    return ["Each episode sampled a random variation of this preference, from whose reward the policy learned."]


def _times(ratio: float) -> str:
    return "" if abs(ratio - 1) < 0.05 else f"{ratio:.2f} times "


def _rewards(run: Run, task: str) -> list[str]:
    rewards = [entry["reward"] for entry in run.metrics("episode", task) if entry.get("reward") is not None]
    if not rewards:
        return []
    positive, mean = sum(reward > 0 for reward in rewards), float(np.mean(rewards))
    sentences = [
        f"The reward was positive in {positive} of {len(rewards)} episodes; its mean is {mean:+.4f}.".replace("-", "−"),
        "It is the error that a straight line through the two validations before predicts, minus the error that was "
        "reached.",
    ]
    if mean < 0:
        sentences.append(
            "As training slows down the error lies above that line, so a mean below 0 is normal and no sign of harm."
        )
    return sentences


def _advantages(run: Run, task: str) -> list[str]:
    rollouts = list(run.metrics("rollouts", task))
    if not rollouts:
        return []
    hardest = np.mean([entry["advantage"][0] for entry in rollouts])
    easiest = np.mean([entry["advantage"][len(entry["errors"]) - 1] for entry in rollouts])  # empty groups have none
    times = "once" if len(rollouts) == 1 else f"{len(rollouts)} times"
    return [
        f"The policy learned from rollouts, not from rewards: {times} each group was preferred for "
        f"{rollouts[0]['iterations']} iterations from a copy of the state.",
        f"The mean advantage of the hardest group was {hardest:+.2f} and that of the easiest {easiest:+.2f}, in "
        "standard deviations of the error after the rollouts, "
        "corrected for the noise of the validation samples.".replace("-", "−"),
    ]


# ---- data of the page


def policy_data(run: Run, task: str, states: Sequence[SamplingState], snapshot: Snapshot | None) -> dict[str, Any]:
    """Return the numbers of the preference map and the error map, and a sample to apply permutations to.

    From the states after all validations; those in between are left out where there are many.
    """
    permutations, history = stored_permutations(run)[task], History.of(states)
    states = evenly_spaced(states, MAX_VALIDATIONS)
    rewards = {entry["iteration"]: entry["reward"] for entry in run.metrics("episode", task)}
    active = [state if state.is_active else None for state in states]
    percent = np.stack([state.errors for state in states]) * 100
    view = TASKS[task].view
    return {
        "permutations": permutations.tolist(),
        "columns": view.columns(permutations.shape[1]),
        "layout": "grid" if view.in_grid else "strip",
        "iterations": [state.iteration for state in states],
        # one byte per error: there may be 1000 permutations at 120 validations
        "errors": base64.b64encode(percent.round().astype(np.uint8).tobytes()).decode(),
        "ranking": by_mean_error(history).tolist(),
        # null for groups of pairs
        "groups": [None if state.groups is None else state.groups.tolist() for state in states],
        "preferences": [state and _rounded(state.preferences.tolist()) for state in active],
        "sizes": [state and _rounded(state.sizes.tolist()) for state in active],
        "rewards": [rewards.get(state.iteration) for state in states],
        "rollouts": _rollout_data(run, task, states),
        "difficulty": chart_values(difficulty_chart(divide_samples(run, history, task))),
        "sample": _sample(snapshot, task),
    }


def _rollout_data(run: Run, task: str, states: Sequence[SamplingState]) -> dict[str, list[list[float] | None]] | None:
    """Return the advantage and the error of each group after some of the validations, if there were rollouts."""
    by_iteration = {entry["iteration"]: entry for entry in run.metrics("rollouts", task)}
    if not by_iteration:
        return None
    entries: list[Any] = [by_iteration.get(state.iteration) for state in states]
    return {
        # groups without members have no rollout
        "advantages": [entry and _rounded(entry["advantage"][: len(entry["errors"])]) for entry in entries],
        "errors": [entry and _rounded(entry["errors"]) for entry in entries],
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _sample(snapshot: Snapshot | None, task: str) -> dict[str, str] | None:
    if snapshot is None or task not in snapshot.held_out:
        return None
    samples = snapshot.held_out[task]
    index = highest_contrast(samples)
    parts = snapshot.network.tasks[task].pictures(samples.pixels[[index]], TASKS[task].view.picture_side)
    return {"strip": strip(parts[0]), "name": samples.names[index]}
