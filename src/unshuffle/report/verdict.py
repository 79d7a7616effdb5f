"""Whether the features of a run got better, by how much, and what to do if not: in numbers and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from unshuffle.config import TASK_SYMBOLS, preset_config
from unshuffle.console import plain_table
from unshuffle.report.results import TaskErrors, task_errors
from unshuffle.runs.history import is_finished
from unshuffle.runs.run import Run

Change = Literal["better", "worse", "level"]
NEAR_CHANCE = 0.9
"""A task whose error is above this fraction of the chance level has hardly been learned."""
COLLAPSE = 0.5
"""An effective rank below this fraction of the one before training is a sign of collapse."""

OUTVOTED = (
    "Labelled images decide: crops and frames of one sample also share textures, which better features may ignore."
)
"""Beside better features by which fewer of the run's own views find each other."""


@dataclass(frozen=True)
class _Kind:
    """A measure that `monitor` lines hold under `key`."""

    key: str
    title: str
    sentence: str
    noun: str = ""
    unit: str = " %"
    chance: str = ""
    queries: str = ""


_KINDS = (
    _Kind(
        "top1",
        "labelled neighbours, top 1 [%]",
        "the nearest neighbours of labelled images have their class in {trained} of the cases",
        chance="chance",
        queries="queries",
    ),
    _Kind(
        "crops_top1",
        "two crops of an image find each other [%]",
        "two crops of one held-out image find each other in {trained} of the cases",
        noun="crops",
        chance="crops_chance",
        queries="crops_queries",
    ),
    _Kind(
        "frames_top1",
        "two frames of a clip find each other [%]",
        "two frames of one held-out clip find each other in {trained} of the cases",
        noun="frames",
        chance="frames_chance",
        queries="frames_queries",
    ),
    _Kind(
        "own_rankme",
        "effective rank of the features (RankMe)",
        "the effective rank of the features is {trained}",
        unit="",
    ),
)


@dataclass(frozen=True)
class Measure:
    """A measure of the features before training and now."""

    key: str
    """Its name in `monitor` lines."""
    title: str
    """Its name in tables, with the unit."""
    initial: float
    """Of the network before training: untrained, or with the weights in `init`."""
    trained: float
    chance: float | None
    noise: float
    """Two standard errors of the difference, in percentage points; 0 where the number of queries is not known."""
    iteration: int
    """Of the latest value, `trained`."""
    sentence: str

    @property
    def change(self) -> Change:
        """Whether the difference exceeds the noise, and in which direction."""
        difference = self.trained - self.initial
        if abs(difference) <= self.noise:
            return "level"
        return "better" if difference > 0 else "worse"


@dataclass(frozen=True)
class Verdict:
    """What the measures say together."""

    change: Change | Literal["mixed"]
    sentences: Sequence[str]
    """The first says whether the features got better; further ones what to do if not."""


def feature_measures(run: Run) -> list[Measure]:
    """Return the first and the latest value of everything that the monitor has measured more than once."""
    measures, entries = [], list(run.metrics("monitor"))
    for kind in _KINDS:
        logged = [entry for entry in entries if kind.key in entry]
        if len(logged) < 2:
            continue
        first, last = logged[0], logged[-1]
        initial, trained = first[kind.key], last[kind.key]
        measures.append(
            Measure(
                kind.key,
                kind.title,
                initial,
                trained,
                last.get(kind.chance),
                _noise(initial, trained, last.get(kind.queries)),
                last["iteration"],
                _sentence(kind, initial, trained, last),
            )
        )
    return measures


def _noise(initial: float, trained: float, queries: int | None) -> float:
    variance = max(0.0, initial * (100 - initial) + trained * (100 - trained))  # a damaged line may hold any number
    return float(2 * (variance / queries) ** 0.5) if queries and queries > 0 else 0.0


def _sentence(kind: _Kind, initial: float, trained: float, last: Mapping[str, float]) -> str:
    chance = f", chance {last[kind.chance]:.1f}{kind.unit}" if kind.chance in last else ""
    before = f"{initial:.1f}{kind.unit} before training{chance}"
    return f"{kind.sentence.format(trained=f'{trained:.1f}{kind.unit}')} ({before})"


def judge_features(run: Run) -> Verdict | None:
    """Return whether the features got better; None as long as there is nothing to compare.

    Labelled images decide where there are some. Otherwise crops and frames of the run's own held-out samples do; the
    effective rank is only stated, as it has no known noise.
    """
    measures = {measure.key: measure for measure in feature_measures(run)}
    own = [measures[key] for key in ("crops_top1", "frames_top1") if key in measures]
    deciding = [measures["top1"]] if "top1" in measures else own
    if not deciding:
        return None
    changes = {measure.change for measure in deciding} - {"level"}
    change: Change | Literal["mixed"] = "mixed" if len(changes) > 1 else next(iter(changes), "level")
    rank = measures.get("own_rankme")
    stated = deciding if rank is None or "top1" in measures else [*deciding, rank]
    so_far = "" if is_finished(run) else "so far "
    headline = {
        "better": "the features got better",
        "worse": "the features got worse",
        "level": "the features did not get measurably better",
        "mixed": "the checks disagree on whether the features got better",
    }[change]
    text = f"{so_far}{headline}: {'; '.join(measure.sentence for measure in stated)}."
    remark = _noise_remark([measure for measure in deciding if measure.change == "level"])
    advice = [] if change == "better" else _advice(run)
    outvoted = change == "better" and deciding != own and any(measure.trained < measure.initial for measure in own)
    remark += [OUTVOTED] if outvoted else []
    return Verdict(change, [text[0].upper() + text[1:], *remark, *_collapse(rank), *advice])


def _noise_remark(level: Sequence[Measure]) -> list[str]:
    """Return how large a difference must be to count, for each measure that has not changed by as much."""
    if not level:
        return []
    nouns = {kind.key: kind.noun for kind in _KINDS}
    limits, unit = [], " percentage points"
    for measure in level:
        of = f" for {nouns[measure.key]}" if nouns[measure.key] else ""
        limits.append(f"{measure.noise:.1f}{unit}{of}")
        unit = ""  # named once
    return [f"Differences of up to {' and '.join(limits)} are within the noise."]


def _collapse(rank: Measure | None) -> list[str]:
    if rank is None or rank.trained >= COLLAPSE * rank.initial:
        return []
    return [
        f"The effective rank fell from {rank.initial:.1f} to {rank.trained:.1f}, a sign of collapse: lower the "
        "learning rate (--optim.backbone.lr)."
    ]


def _advice(run: Run) -> list[str]:
    """Return what to do when the features did not get better."""
    config = run.config
    slow = [row.task for row in task_errors(run) if _learned_little(row)]
    if slow:
        name, verb = " and ".join(slow), "task has" if len(slow) == 1 else "tasks have"
        return [
            f"The {name} {verb} learned little so far: train longer (--resume --iterations, now "
            f"{config.optim.iterations}), and check with unshuffle doctor that the data can be learned."
        ]
    usual = preset_config(config.preset).optim.iterations
    if config.optim.iterations < usual:
        return [
            f"The run had {config.optim.iterations} iterations; the preset {config.preset} has {usual}: train longer "
            f"(--resume --iterations {usual}) before you judge it."
        ]
    symbols = [symbol for symbol, name in TASK_SYMBOLS.items() if name in config.task_names]
    can_add = len(config.stages) == 1 and "I" not in symbols
    advice = ["give more or more varied data"]
    if can_add:
        advice.append(f"add instance discrimination (--tasks {'+'.join([*symbols, 'I'])})")
    if config.init is None:
        advice.append("start from trained weights (--init pretrained for caffenet)")
    return [f"The pretext tasks were learned, so more of the same helps little: {', or '.join(advice)}."]


def _learned_little(errors: TaskErrors) -> bool:
    """Return whether a task is near chance, or where it began; with good initial weights it may begin far below."""
    return errors.trained > max(NEAR_CHANCE * min(errors.initial, errors.chance), errors.chance / 2)


def own_data_table(run: Run) -> Table:
    """Return the measures on the run's own data before and after training, beside chance."""
    table = plain_table("own data", "before", "trained", "chance")
    for measure in feature_measures(run):
        if measure.key == "top1":  # beside its baselines in the table of the retrieval
            continue
        chance = "" if measure.chance is None else f"{measure.chance:.1f}"
        table.add_row(measure.title, f"{measure.initial:.1f}", f"{measure.trained:.1f}", chance)
    return table
