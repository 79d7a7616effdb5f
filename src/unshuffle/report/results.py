"""What a run has learned, beside what it has to beat: the numbers of every table."""

from dataclasses import dataclass

from unshuffle.run import Run


@dataclass(frozen=True)
class Errors:
    """Validation errors of a task: shares of all pairs of an order and a sample that were not recognised."""

    task: str
    iteration: int
    before: float
    """Of the network that the training began with: an untrained one, or what `init` gave it."""
    trained: float
    guessing: float


def errors(run: Run) -> list[Errors]:
    """The first error and the newest of each task."""
    entries = list(run.metrics("validation"))
    rows = []
    for task in dict.fromkeys(entry["task"] for entry in entries):
        own = [entry for entry in entries if entry["task"] == task]
        rows.append(Errors(task, own[-1]["iteration"], own[0]["error"], own[-1]["error"], own[0]["chance"]))
    return rows


def retrieval(run: Run) -> dict[str, dict[str, float]]:
    """Retrieval [%] of the trained network, of the same one before, and of features that nobody had to learn."""
    monitors = list(run.metrics("monitor"))
    if not monitors:
        return {}
    rows = {"this network": monitors[-1], "before training": monitors[0]}
    rows |= {entry["name"]: entry for entry in run.metrics("baseline")}
    columns = [key for key in monitors[0] if key.startswith("top")]
    return {name: {key.replace("top", "top "): scores[key] for key in columns} for name, scores in rows.items()}
