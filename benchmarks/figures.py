"""Figures of the pages in docs/results/, from the tables in benchmarks/results/ and beside them.

    python benchmarks/figures.py [NAME ...] [--out FOLDER]

Nothing is measured. A NAME is one of `FIGURES`, by default all of them; figures of the other pages are drawn by the
benchmarks themselves.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from unshuffle.analysis.figures import (
    COLOURS,
    LEVELS,
    QUIET,
    name_axes,
    panels,
    save_figure,
    styled,
    thousands,
)

RESULTS = Path(__file__).parent / "results"
TOP = (1, 5, 10, 20, 50)
Row = Mapping[str, str]


def main() -> None:
    """Draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(FIGURES)}")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if unknown := set(args.names) - set(FIGURES):
        parser.error(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or FIGURES:
        save_figure(FIGURES[name](), [args.out / f"{name}.svg"])
        print(args.out / f"{name}.svg")


def read(name: str) -> list[Row]:
    """Return the rows of results/NAME.csv."""
    lines = (RESULTS / f"{name}.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def curve(rows: Iterable[Row], y: str, x: str = "iteration") -> tuple[list[float], list[float]]:
    """Return the coordinates of the rows that have a value."""
    points = [(float(row[x]), float(row[y])) for row in rows if row[y]]
    return [point[0] for point in points], [point[1] for point in points]


def level(axes: Axes, value: float, label: str, *, above: bool = False, x: float = 0.01, style: int = 2) -> None:
    """Draw a reference level, named at its left end or at `x`, below it unless `above`."""
    axes.axhline(value, color=QUIET, linewidth=1, linestyle=LEVELS[style])
    axes.annotate(
        label,
        (x, value),
        (0, 3 if above else -3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=8,
        color=QUIET,
        va="bottom" if above else "top",
    )


def dots(axes: Axes, groups: Sequence[tuple[str, Sequence[Sequence[float]]]], labels: Sequence[str]) -> None:
    """Draw a row for each group, the first on top, with the values of each label: a mark at their mean, dots for each.

    A group is its name and, for each label, its values, of which there may be none.
    """
    step = 0.7 / len(labels)
    for index, label in enumerate(labels):
        colour, named = COLOURS[index % len(COLOURS)], False
        for row, (_, values) in enumerate(groups):
            if not values[index]:
                continue
            y = row + step * (index - (len(labels) - 1) / 2)
            axes.plot(values[index], [y] * len(values[index]), "o", color=colour, markersize=3.5, alpha=0.55)
            axes.plot(
                fmean(values[index]), y, "D", color=colour, markersize=6, label=None if named else label, zorder=3
            )
            named = True
    axes.set_yticks(range(len(groups)), [name for name, _ in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Place the names of what these axes show below the whole figure."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def log_scale(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def chance_line(axes: Axes, value: float) -> None:
    """Mark the chance level on the horizontal axis, named above the axes."""
    axes.axvline(value, color=QUIET, linewidth=1, linestyle=LEVELS[2])
    axes.annotate(
        f"chance {value:.3f}",
        (value, 1),
        (0, 2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=8,
        color=QUIET,
        ha="center",
    )


# ---- one function for each figure


@styled
def validation_cost() -> Figure:
    """The time of a validation with and without a shared backbone pass."""
    figure, axes = panels(width=7.4, height=2.9)
    groups = []
    for machine, device in (("2 CPU cores", "cpu"), ("NVIDIA H200", "cuda")):
        for row in read(f"validation_cost_{device}"):
            values = [[float(row["direct_seconds_scaled"])], [float(row["shared_seconds"])]]
            groups.append((f"{row['task']}, {machine}", values))
            axes[0, 0].annotate(
                f"{row['times_faster']} times",
                (values[1][0], len(groups) - 1 + 0.17),
                (9, 0),
                textcoords="offset points",
                fontsize=9,
                va="center",
            )
    dots(axes[0, 0], groups, ["a forward pass for each pair (scaled from fewer)", "the backbone once per part"])
    log_scale(axes[0, 0])
    name_axes(axes[0, 0], "A validation: 1000 permutations × 100 samples", "seconds", "")
    legend(figure, axes[0, 0], 2)
    return figure


@styled
def frame_similarity() -> Figure:
    """The error of sorting frames by similarity, with one crop and with a crop for each frame."""
    names = {
        "pixels": "pixels",
        "pixels of 8 x 8": "pixels of 8 × 8",
        "colour histogram": "colour histogram",
        "pool5 of random:caffenet": "pool5, untrained",
        "pool5 of S+T.safetensors": "pool5, trained with S+T",
    }
    rows = [row for row in read("frame_similarity") if row["smoothness"] == "path"]
    figure, axes = panels(1, 2, width=5.0, height=3.6, sharex=True, sharey=True)
    for axis, fraction in zip(axes[0], sorted({row["crop_fraction"] for row in rows}), strict=True):
        groups = [
            (
                title,
                [
                    [
                        float(row["error"])
                        for row in rows
                        if (row["distance"], row["crop_fraction"], row["crops"]) == (name, fraction, crops)
                    ]
                    for crops in ("one", "own")
                ],
            )
            for name, title in names.items()
        ]
        dots(axis, groups, ["one crop for all frames", "a random crop for each frame"])
        chance_line(axis, 0.990)
        axis.set_xlim(0.3, 1.03)
        crop = float(fraction)
        name_axes(axis, f"crops of {crop:g} of the short side", "error (fraction of wrong permutations)", "")
    legend(figure, axes[0, 0], 2)
    return figure


LEAVING = {
    "paper-literal": "paper-literal",
    "momentum, centred": "momentum, weight decay, centred",
    "frames by AdamW": "and AdamW for T",
    "frames by AdamW, not centred": "the same, not centred",
    "frames by AdamW, lr 0.01": "the same, SGD at 0.01",
    "frames by AdamW, 8 permutations": "centred, AdamW for T, 8 permutations: paper",
    "all by AdamW": "AdamW for all, centred",
    "all by AdamW, 8 permutations": "and 8 permutations",
}
"""Variants of the study, and their names in the figure."""


@styled
def leaving_chance() -> Figure:
    """Errors of both tasks over the first iterations."""
    rows = read("recipes_leave-paper")
    figure, axes = panels(1, 2, width=5.2, height=4.0, sharey=True)
    for axis, task in zip(axes[0], ("spatial", "temporal"), strict=True):
        for index, (variant, title) in enumerate(LEAVING.items()):
            own = [row for row in rows if row["variant"] == variant and row["task"] == task]
            axis.plot(
                *curve(own, "error"),
                color=COLOURS[index % len(COLOURS)],
                linestyle="-" if index < len(COLOURS) else "--",
                label=title,
            )
        axis.axhline(0.98, color=QUIET, linewidth=1, linestyle=LEVELS[0], label="below it: left chance")
        level(axis, 0.999, "chance 0.999", above=True, x=0.01)
        thousands(axis.xaxis)
        axis.set_ylim(0.65, 1.02)
        name_axes(axis, f"{task} task, 1000 permutations", "iteration", "error on X_val")
    legend(figure, axes[0, 0], 3)
    return figure


@styled
def long_run() -> Figure:
    """Errors, training accuracy and retrieval over the long run and over its repetition."""
    figure, axes = panels(1, 3, width=4.3, height=3.8)
    for number, name in enumerate(("long_run_cuda", "long_run_first_cuda")):
        rows, line = read(name), "-" if number == 0 else "--"
        suffix = "" if number == 0 else ", second run"
        for task, colour in (("spatial", COLOURS[0]), ("temporal", COLOURS[1])):
            axes[0, 0].plot(*curve(rows, f"{task}_error"), line, color=colour, label=f"{task}{suffix}")
            axes[0, 1].plot(*curve(rows, f"{task}_training_accuracy"), line, color=colour)
        axes[0, 2].plot(*curve(rows, "top1"), line, marker="o", color=COLOURS[2])
    level(axes[0, 0], 0.999, "chance 0.999 (S), 0.990 (T)", x=0.3)
    axes[0, 0].set_ylim(0, 1.02)
    axes[0, 1].set_ylim(0, 1.02)
    level(axes[0, 2], 24.9, "untrained 24.9", above=True, x=0.45)
    axes[0, 2].set_ylim(0, 50)
    name_axes(axes[0, 0], "held-out samples", "iteration", "error")
    name_axes(axes[0, 1], "training samples", "iteration", "accuracy")
    name_axes(axes[0, 2], "Caltech-101, nearest neighbours", "iteration", "top 1 [%]")
    for axis in axes[0]:
        thousands(axis.xaxis)
    legend(figure, axes[0, 0], 4)
    return figure


@styled
def spatial_alone() -> Figure:
    """The spatial error of the spatial task alone and of S+T."""
    figure, axes = panels(width=6.4, height=3.8)
    for name, label, colour in (
        ("long_run_tiles_cuda", "S alone, squares of 0.8", COLOURS[0]),
        ("long_run_cuda", "S+T, squares of 0.85", COLOURS[1]),
    ):
        axes[0, 0].plot(*curve(read(name), "spatial_error"), color=colour, label=label)
    level(axes[0, 0], 0.2, "target 0.2", x=0.02)
    level(axes[0, 0], 0.999, "chance 0.999", x=0.3)
    axes[0, 0].set_ylim(0, 1.03)
    thousands(axes[0, 0].xaxis)
    name_axes(axes[0, 0], "1000 permutations of tiles, 434 held-out images", "iteration", "spatial error")
    axes[0, 0].legend(loc="center right")
    return figure


@styled
def longer() -> Figure:
    """Errors and retrieval of the second run, and of 26,000 further iterations."""
    figure, axes = panels(1, 2, width=5.4, height=3.8)
    first, further = read("long_run_first_cuda"), read("long_run_further_cuda")
    for task, colour in (("spatial", COLOURS[0]), ("temporal", COLOURS[1])):
        x, y = curve(first, f"{task}_error")
        axes[0, 0].plot(x, y, color=colour, label=task)
        x, y = curve(further, f"{task}_error")
        axes[0, 0].plot([24_000 + value for value in x], y, color=colour)
    for rows, start in ((first, 0), (further, 24_000)):
        x, y = curve(rows, "top1")
        axes[0, 1].plot([start + value for value in x], y, "o-", color=COLOURS[2])
    for axis in axes[0]:
        axis.axvline(24_000, color=QUIET, linewidth=1, linestyle=LEVELS[2])
        thousands(axis.xaxis)
    level(axes[0, 0], 0.999, "chance 0.999 (S), 0.990 (T)", x=0.02, above=True)
    axes[0, 0].set_ylim(0, 1.08)
    axes[0, 1].set_ylim(0, 50)
    level(axes[0, 1], 24.9, "untrained 24.9", x=0.6)
    axes[0, 1].annotate("new heads\nfrom here", (24_000, 4), (5, 0), textcoords="offset points", fontsize=8)
    axes[0, 0].legend(loc="center left", bbox_to_anchor=(0.12, 0.57))
    name_axes(axes[0, 0], "held-out samples", "iteration", "error")
    name_axes(axes[0, 1], "Caltech-101, nearest neighbours", "iteration", "top 1 [%]")
    return figure


@styled
def overfitting() -> Figure:
    """Errors on held-out samples over the accuracy in training."""
    figure, axes = panels(1, 2, width=5.2, height=3.8)
    for axis, task in zip(axes[0], ("spatial", "temporal"), strict=True):
        rows = read(f"recipes_overfit-{task}")
        for index, variant in enumerate(dict.fromkeys(row["variant"] for row in rows)):
            own = [row for row in rows if row["variant"] == variant]
            axis.plot(*curve(own, "error"), "o-", color=COLOURS[index], label=variant)
        chance = 0.999 if task == "spatial" else 0.990
        level(axis, chance, f"chance {chance:.3f}", above=True)
        axis.set_ylim(0, 1.08)
        thousands(axis.xaxis)
        name_axes(axis, f"{task} task, held-out samples", "iteration", "error")
        axis.legend(loc="lower left", fontsize=9)
    return figure


PIECES = {
    "demo": "the preset demo",
    "not centred": "fc6 not centred",
    "lstm": "LSTM",
    "lstm, not centred": "LSTM, fc6 not centred",
    "one crop for all frames": "one crop for all frames",
    "colours for each frame": "colour jitter for each frame",
    "1 permutation a clip": "1 permutation per clip",
    "dropout 0.5": "dropout 0.5",
    "1 permutation an image": "1 permutation per image",
}
"""Variants of the studies demo-temporal and demo-spatial, and their names in the figure."""


@styled
def pieces() -> Figure:
    """Errors after 100, 200 and 300 iterations with each piece changed alone."""
    figure, axes = panels(1, 2, width=5.4, height=3.6)
    for axis, task in zip(axes[0], ("temporal", "spatial"), strict=True):
        rows = read(f"recipes_demo-{task}")
        groups = [
            (
                PIECES[variant],
                [
                    [float(row["error"]) for row in rows if (row["variant"], row["iteration"]) == (variant, at)]
                    for at in ("100", "200", "300")
                ],
            )
            for variant in dict.fromkeys(row["variant"] for row in rows)
        ]
        dots(axis, groups, ["after 100 iterations", "200", "300"])
        axis.set_xlim(0, 1.04)
        chance_line(axis, 0.990)
        name_axes(axis, f"{task} task", "error on X_val", "")
    legend(figure, axes[0, 0], 3)
    return figure


@styled
def reward_signal() -> Figure:
    """The signal-to-noise ratio of the reward, by what is grouped and by the action."""
    figure, axes = panels(width=7.6, height=3.9)
    groups = []
    for grouping in ("permutations", "pairs"):
        for task in ("spatial", "temporal"):
            for iterations in ("50", "200"):
                rows = [
                    row
                    for row in read("reward_noise_cuda")
                    if (row["grouped"], row["task"], row["iterations"]) == (grouping, task, iterations)
                ]
                values = [[float(row[action]) for row in rows] for action in ("mixture", "batch")]
                groups.append((f"{grouping}, {task}, {iterations} iterations", values))
    dots(axes[0, 0], groups, ["a mixture for each episode", "a group for each batch"])
    log_scale(axes[0, 0])
    axes[0, 0].axhline(3.5, color=QUIET, linewidth=0.8)
    name_axes(axes[0, 0], "Reward of an episode, |X_val| = 100 and 500", "signal-to-noise ratio", "")
    legend(figure, axes[0, 0], 2)
    return figure


RIVALS = {
    "images_top1": ("Caltech-101, nearest neighbours", 24.9),
    "images_linear": ("Caltech-101, linear probe on pool5", 31.8),
    "frames_top1": ("UCF-101, single frames", 27.2),
    "objects_top1": ("VOC 2012, objects", 11.6),
}
"""Figures of the rivals, with those of the untrained network."""
OTHER_UNTRAINED = {("rivals_cpu", "frames_top1"): 26.0}  # 3 frames of each clip instead of 10


@styled
def rivals(table: str) -> Figure:
    """Each evaluation of each arm, with a dot for each seed; runs of other lengths have rows of their own."""
    rows = read(table)
    lengths = {row.get("allowed") for row in rows}
    names = [row["arm"] if len(lengths) == 1 else f"{row['arm']}, {float(row['allowed']):g} s" for row in rows]
    columns = [column for column in RIVALS if any(row.get(column) for row in rows)]
    height = max(3.0, 0.45 * len(set(names)))
    figure, axes = panels(math.ceil(len(columns) / 2), 2, width=4.8, height=height, sharey=True)
    for axis in axes.flat[len(columns) :]:
        axis.axis("off")
    for axis, column in zip(axes.flat, columns, strict=False):
        title, untrained = RIVALS[column]
        untrained = OTHER_UNTRAINED.get((table, column), untrained)
        measured = [(name, float(row[column])) for name, row in zip(names, rows, strict=True) if row[column]]
        groups = [(arm, [[value for name, value in measured if name == arm]]) for arm in dict.fromkeys(names)]
        dots(axis, groups, ["mean"])
        axis.axvline(untrained, color=QUIET, linewidth=1, linestyle=LEVELS[2])
        axis.annotate(
            f"untrained {untrained}",
            (untrained, 0.03),
            (4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
            color=QUIET,
        )
        for row, (_, values) in enumerate(groups):
            if not values[0]:
                axis.annotate("not measured", (untrained + 4, row), fontsize=8, color=QUIET, va="center")
        one = max(len(values[0]) for _, values in groups) == 1
        name_axes(axis, f"{title}{', one seed' if one else ''}", "top 1 [%]", "")
    return figure


@styled
def rotation() -> Figure:
    """Evaluations of rotation prediction beside those of ordering."""
    evaluations = {
        ("retrieval", "top1"): ("retrieval.top1", "Caltech-101, nearest neighbours", 24.9),
        ("linear.pool5", "top1"): ("linear.pool5.top1", "Caltech-101, linear probe", 31.8),
        ("frames", "top1"): ("frames.top1", "UCF-101, single frames", 18.1),
        ("action", "accuracy"): ("", "UCF-101, actions (10 classes)", 41.4),
    }
    runs, tasks, actions = read("long_run_evaluations_cpu"), read("comparison_tasks_cuda"), read("action_cpu")
    figure, axes = panels(width=7.6, height=4.2)
    groups = []
    for (evaluation, metric), (own, title, untrained) in evaluations.items():
        ordering = [float(row["value"]) for row in tasks if row["arm"] == "S+T" and row["metric"] == own]
        if not own:
            ordering = [float(row["accuracy"]) for row in actions if (row["arm"], row["classes"]) == ("S+T", "10")]
        of_run = {
            run: [
                float(row["value"])
                for row in runs
                if (row["backbone"], row["evaluation"], row["metric"]) == (run, evaluation, metric)
            ]
            for run in ("rotation", "long", "first")
        }
        groups.append((title, [[untrained], ordering, of_run["rotation"], of_run["long"] + of_run["first"]]))
    dots(axes[0, 0], groups, ["untrained", "S+T, three seeds", "rotation prediction", "S+T+P, two runs of 24,000"])
    name_axes(axes[0, 0], "Four evaluations of frozen or fine-tuned features", "right answers [%]", "")
    legend(figure, axes[0, 0], 4)
    return figure


TEMPORAL = {
    "lstm": "LSTM",
    "concat": "concatenated fc6",
    "concat, mirrored and reversed": "… flips, reversed clips",
    "all of these": "… jitter, crops of 0.7, 32 permutations",
    "all, within 48 frames": "… within 48 frames",
    "all, backbone by AdamW": "without the window, AdamW for all",
    "all, smaller head": "SGD, smaller head",
    "all, lstm": "SGD, LSTM",
}
"""Variants of the study `temporal`, and their names in the figure."""


@styled
def temporal_recipe() -> Figure:
    """The temporal error over iterations for each recipe, and over a longer training for the best."""
    figure, axes = panels(1, 2, width=5.2, height=4.0, sharey=True)
    rows = read("recipes_temporal")
    for index, (variant, title) in enumerate(TEMPORAL.items()):
        own = [row for row in rows if row["variant"] == variant]
        style = "o-" if index < len(COLOURS) else "o--"
        axes[0, 0].plot(*curve(own, "error"), style, color=COLOURS[index % len(COLOURS)], label=title)
    longer_rows = read("recipes_temporal_6000")
    colour = COLOURS[list(TEMPORAL).index("all, backbone by AdamW")]
    axes[0, 1].plot(*curve(longer_rows, "error"), "o-", color=colour)
    for axis, title in zip(axes[0], ("1,600 iterations", "AdamW for all, 6,000 iterations"), strict=True):
        axis.set_ylim(0.35, 1.02)
        level(axis, 0.990, "chance 0.990", x=0.55)
        thousands(axis.xaxis)
        name_axes(axis, title, "iteration", "error on clips of other scenes")
    legend(figure, axes[0, 0], 3)
    return figure


@styled
def voc_segmentation() -> Figure:
    """The intersection over union of each class."""
    rows = {row["figure"]: float(row["percent"]) for row in read("voc_segmentation_cpu")}
    classes = {name.removeprefix("IoU "): value for name, value in rows.items() if name.startswith("IoU ")}
    names = sorted(classes, key=lambda name: -classes[name])
    figure, axes = panels(width=7.6, height=4.6)
    axis = axes[0, 0]
    axis.barh(range(len(names)), [classes[name] for name in names], color=COLOURS[0], height=0.7)
    for place, name in enumerate(names):
        axis.annotate(
            f"{classes[name]:.1f}", (classes[name], place), (4, 0), textcoords="offset points", fontsize=8, va="center"
        )
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.set_ylim(len(names) - 0.4, -0.6)
    trivial = rows["chance (all background)"]
    axis.annotate(
        f"mean of all classes: {rows['mIoU']:.1f}\nof an answer that is all background: {trivial:.1f}",
        (0.45, 0.4),
        xycoords="axes fraction",
        fontsize=9,
    )
    name_axes(axis, "VOC 2012, 140 images", "intersection over union [%]", "")
    return figure


@styled
def untrained() -> Figure:
    """Retrieval with an untrained network over k, and by chance."""
    rows = read("untrained_cpu")
    figure, axes = panels(width=6.4, height=4.2)
    for data, colour in zip(dict.fromkeys(row["data"] for row in rows), COLOURS, strict=False):
        own = [row for row in rows if row["data"] == data]
        axes[0, 0].plot(*curve(own, "untrained", "k"), "o-", color=colour, label=data)
        axes[0, 0].plot(*curve(own, "chance", "k"), color=colour, linewidth=1, linestyle=LEVELS[2])
    log_scale(axes[0, 0])
    axes[0, 0].set_xticks(TOP, [str(k) for k in TOP])
    axes[0, 0].minorticks_off()
    axes[0, 0].set_ylim(0, 100)
    name_axes(axes[0, 0], "Untrained CaffeNet; dotted: chance", "k nearest neighbours", "top k [%]")
    legend(figure, axes[0, 0], 2)
    return figure


OWN_DATA = {
    "scratch, 400": "untrained,\n400 photos",
    "scratch, 4,000": "untrained,\n4,000 photos",
    "weights, 400": "weights of the package,\n400 photos",
    "weights, all": "weights of the package,\n1,212 photos",
}
"""Where the runs on own photographs start, and on how many."""


@styled
def own_data() -> Figure:
    """Retrieval before and after a training on own photographs, for each start and number of them."""
    rows = read("own_data_cpu")
    figure, axes = panels(width=6.4, height=3.2)
    groups = [
        (name, [[float(row[when]) for row in rows if row["arm"] == arm] for when in ("before", "after")])
        for arm, name in OWN_DATA.items()
    ]
    dots(axes[0, 0], groups, ["before", "after"])
    axes[0, 0].set_xlim(left=0)
    name_axes(axes[0, 0], "Caltech-101, nearest neighbours, three seeds", "top 1 [%]", "")
    legend(figure, axes[0, 0], 2)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "validation_cost": validation_cost,
    "frame_similarity": frame_similarity,
    "recipes_leave-paper": leaving_chance,
    "long_run": long_run,
    "long_run_tiles": spatial_alone,
    "long_run_further": longer,
    "recipes_overfit": overfitting,
    "recipes_demo": pieces,
    "reward_noise_cuda": reward_signal,
    "rivals_cuda": partial(rivals, "rivals_cuda"),
    "rivals_cpu": partial(rivals, "rivals_cpu"),
    "rotation": rotation,
    "recipes_temporal": temporal_recipe,
    "voc_segmentation_cpu": voc_segmentation,
    "untrained_cpu": untrained,
    "own_data_cpu": own_data,
}
"""Figures by the names of their files."""


if __name__ == "__main__":
    main()
