"""What can be asked with `unshuffle analyze NAME`: the options that all analyses share, and the list of them."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from unshuffle.analysis.result import Analysis
from unshuffle.lazy import LazyClass, find_class


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


QUESTIONS: dict[str, LazyClass] = {
    "selection": LazyClass(
        "unshuffle.analysis.selection",
        "Selection",
        "Trains on from checkpoints with the policy, at random and with the inverse policy (appendix F).",
    ),
    "difficulty": LazyClass(
        "unshuffle.analysis.difficulty",
        "Difficulty",
        "How hard the permutations are that the policy chooses, in four classes of validation error (Fig. 4).",
    ),
    "error-map": LazyClass(
        "unshuffle.analysis.error_map",
        "ErrorMap",
        "The error of every permutation over time, sorted, of runs with and without policy (Fig. 6).",
    ),
    "convergence": LazyClass(
        "unshuffle.analysis.convergence",
        "Convergence",
        "Retrieval over iterations (Fig. 5) and over all forward passes, the policy's included (appendix H).",
    ),
    "baseline": LazyClass(
        "unshuffle.analysis.baseline",
        "Baseline",
        "The extrapolated error, the error that came and the reward between them, over episodes (appendix E).",
    ),
    "hamming": LazyClass(
        "unshuffle.analysis.hamming",
        "Hamming",
        "How strongly the chosen permutations shuffle over time; pictures of likely and unlikely ones (appendix G).",
    ),
    "cost": LazyClass(
        "unshuffle.analysis.cost",
        "Cost",
        "What the policy costs beside the training: derived as in the paper, and by the clock (appendix H).",
    ),
    "valset": LazyClass(
        "unshuffle.analysis.validation_size",
        "ValidationSize",
        "Mean and deviation of the validation error for sets X_val of several sizes (appendix C).",
    ),
    "groups": LazyClass(
        "unshuffle.analysis.group_count",
        "GroupCount",
        "Are groups of permutations different? Histogram of ratios, p-values in pairs, a recommended |C| (appendix D).",
    ),
    "activations": LazyClass(
        "unshuffle.analysis.activations",
        "Activations",
        "Images that excite units of conv5 most, in several datasets (appendix I.1).",
    ),
    "saliency": LazyClass(
        "unshuffle.analysis.saliency",
        "Saliency",
        "Pixels that fine-tuned networks go by, for several networks side by side (appendix I.2).",
    ),
    "neighbours": LazyClass(
        "unshuffle.analysis.neighbours",
        "NearestNeighbours",
        "Queries and their five nearest, for several models side by side (Fig. 3).",
    ),
}


def find_question(name: str) -> type[Question]:
    """The class of an analysis."""
    question: type[Question] = find_class(name, QUESTIONS, "analysis")
    return question
