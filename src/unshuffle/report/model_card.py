"""The model card of a backbone: what it is, how to use it, and what its run measured."""

from collections.abc import Iterable, Sequence

from unshuffle.config import PRETRAINED, Config, OrderingConfig
from unshuffle.models import Backbone
from unshuffle.models.hub import is_on_hub
from unshuffle.report.results import retrieval_scores, task_errors
from unshuffle.report.verdict import feature_measures, judge_features
from unshuffle.runs.run import Run
from unshuffle.wording import counted

RESEARCH_ONLY = (
    "The weights of the package unshuffle are for research and education only and may not be used commercially; this "
    "holds for weights that were trained from them too. They were trained on 4,000 images of the ImageNet validation "
    "set, among others: never report figures on that set with this model."
)


def model_card(backbone: Backbone, title: str, run: Run | None = None, *, of_package: bool = False) -> str:
    """Return the README.md of a backbone for a model hub, with the figures of its run if that is given.

    Of data and initial weights it states no paths, which may be private. `of_package`: these are the weights that come
    with the package.
    """
    is_timms = backbone.architecture.startswith("timm:")
    research_only = of_package or (run is not None and str(run.config.init) == PRETRAINED)
    tags = ["unshuffle", "self-supervised-learning", *(["timm"] if is_timms else [])]
    header = [
        "---",
        f"library_name: {'timm' if is_timms else 'unshuffle'}",
        *(["license: other", "license_name: research-only"] if research_only else []),
        "pipeline_tag: image-feature-extraction",
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
    ]
    made = "A backbone" if run is None and not of_package else "A backbone trained without labels"
    sections = [
        "\n".join(header),
        f"# {title}",
        f"{made}, written by unshuffle: `{backbone.architecture}`.",
        *_usage(backbone, is_timms),
        "## What it is",
        _what_it_is(backbone),
        *([] if run is None else _training(run)),
        "## Limits",
        *([RESEARCH_ONLY] if research_only else []),
        "Weights inherit the terms of the images and videos that they were trained on: state a licence accordingly. "
        "The features reflect this data and its biases, for which they have not been examined.",
    ]
    return "\n\n".join(sections) + "\n"


def _usage(backbone: Backbone, is_timms: bool) -> Iterable[str]:
    yield "## Use"
    yield _code(
        "import torch",
        "import unshuffle",
        "",
        'backbone = unshuffle.load_backbone("hf:OWNER/NAME")  # from the local cache; or this folder',
        'image = unshuffle.preprocess("photo.jpg", backbone.eval_size, backbone.normalise)',
        "with torch.inference_mode():",
        "    features = backbone(image[None]).flatten(1)",
    )
    if not is_timms:
        return
    yield "With timm:"
    yield _code(
        "import timm",
        "",
        'network = timm.create_model("hf-hub:OWNER/NAME", pretrained=True, num_classes=0)  # or local-dir:FOLDER',
    )
    if not backbone.normalisation.mean:
        yield (
            "It was trained on images that are normalised by their own mean and standard deviation, which timm's "
            "transforms do not offer. Normalise a batch of images in [0, 1] with:"
        )
        yield _code(
            "std, mean = torch.std_mean(images, dim=(2, 3), keepdim=True, correction=0)",
            "images = (images - mean) / std.clamp(min=2 / 255)",
        )


def _what_it_is(backbone: Backbone) -> str:
    weights = sum(parameter.numel() for parameter in backbone.parameters())
    mean, std = backbone.normalisation.mean, backbone.normalisation.std
    normalised = f"mean {_numbers(mean)}, std {_numbers(std)}" if mean else "each image by its own mean and std"
    return _table(
        ("", ""),
        [
            ("architecture", f"`{backbone.architecture}`, {weights / 1e6:.2f} million weights"),
            ("input", f"RGB, {backbone.eval_size} × {backbone.eval_size} pixels by default"),
            ("normalisation", normalised),
            ("output", f"{backbone.channels} channels"),
        ],
    )


def _training(run: Run) -> Iterable[str]:
    config = run.config
    start = next(run.metrics("start"), None)
    sources = [] if start is None else start["sources"]
    data = " and ".join(
        counted(source["items"], "clips" if source["medium"] == "videos" else source["medium"])
        + (" of a synthetic world" if source["storage"] == "synthetic" else "")
        for source in sources
    )
    shuffles = any(isinstance(config.section(name), OrderingConfig) for name in config.task_names)
    rows = [
        ("initial weights", _initial_weights(config)),
        ("tasks", ", ".join(config.task_names)),
        *([("data", data)] if data else []),
        ("iterations", f"{run.last_iteration:,}, each with {_samples(config)}"),
        *([("sampler", config.policy.sampler)] if shuffles else []),
        ("preset and seed", f"{config.preset}, {config.seed}"),
        *([("versions", ", ".join(f"{name} {number}" for name, number in start["versions"].items()))] if start else []),
    ]
    yield "## Training"
    yield _table(("", ""), rows)
    yield "## Figures"
    if (verdict := judge_features(run)) is not None:
        yield verdict.sentences[0]
    errors = [
        (f"{row.task}, {row.kind} error", *(f"{value:.3f}" for value in (row.initial, row.trained, row.chance)))
        for row in task_errors(run)
    ]
    measures = [
        (measure.title, f"{measure.initial:.1f}", f"{measure.trained:.1f}", _optional(measure.chance))
        for measure in feature_measures(run)
    ]
    yield _table(("", "before", "trained", "chance"), [*errors, *measures])
    if scores := retrieval_scores(run):
        columns = list(scores["this network"])
        yield "Labelled images whose class is among their nearest neighbours [%]:"
        yield _table(
            ("", *columns), [(name, *(f"{row[column]:.1f}" for column in columns)) for name, row in scores.items()]
        )


def _samples(config: Config) -> str:
    """Return how many samples each task has in a step."""
    return ", ".join(f"{config.batch_size(name)} {name}" for name in config.task_names) + " samples"


def _initial_weights(config: Config) -> str:
    """Return what the backbone was initialised with, without the names of files."""
    if config.init is None:
        return "random"
    name = str(config.init)
    if name == PRETRAINED:
        return "those of the package unshuffle, for research only (see [limits](#limits))"
    return f"`{name}`" if is_on_hub(name) else "a local file or run, whose terms and data count too"


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _code(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
