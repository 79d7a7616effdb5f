"""What can be asked with `unshuffle analyze NAME`: the options that all analyses share, and the list of them."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from unshuffle.analysis.result import Analysis
from unshuffle.places import describe, find_class


@dataclass(frozen=True, kw_only=True)
class Question:
    """Options that every analysis has; fields of a subclass that have no default are given without a name."""

    out: Path | None = None
    """Folder for the numbers (JSON, CSV) and the figure (SVG, PNG); by default `analysis` in the run, or here."""
    json: Path | None = None
    """Write the figures there as well."""

    @property
    def folder(self) -> Path:
        """Where the files go: of one run into it, as those of two runs have the same names."""
        if self.out is not None:
            return self.out.expanduser()
        run: Path | None = getattr(self, "run", None)
        return Path("analysis") if run is None else run.expanduser() / "analysis"

    def answer(self, console: Console) -> Analysis:
        """Analyse. The command line prints the statement and writes the files."""
        raise NotImplementedError


QUESTIONS: dict[str, str] = {
    "selection": "unshuffle.analysis.selection:Selection",
    "difficulty": "unshuffle.analysis.difficulty:Difficulty",
    "error-map": "unshuffle.analysis.error_map:ErrorMap",
    "convergence": "unshuffle.analysis.convergence:Convergence",
    "baseline": "unshuffle.analysis.baseline:Baseline",
    "hamming": "unshuffle.analysis.hamming:Hamming",
    "cost": "unshuffle.analysis.cost:Cost",
    "valset": "unshuffle.analysis.validation_size:ValidationSize",
    "groups": "unshuffle.analysis.group_count:GroupCount",
    "activations": "unshuffle.analysis.activations:Activations",
    "saliency": "unshuffle.analysis.saliency:Saliency",
    "neighbours": "unshuffle.analysis.neighbours:NearestNeighbours",
}
"""Module and class of each analysis; imported when it is asked for."""


def find_question(name: str) -> type[Question]:
    """The class of an analysis."""
    question: type[Question] = find_class(name, QUESTIONS, "analysis")
    return question


def describe_questions() -> dict[str, str]:
    """The first line about each analysis."""
    return describe(QUESTIONS)
