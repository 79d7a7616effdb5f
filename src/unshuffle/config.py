"""One tree of dataclasses: the config of a run, its command line and its help.

The field defaults are the preset `paper`: every number that the paper states, and a choice of ours where it states
none. `docs/decisions.md` lists those choices with their reasons.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from unshuffle.errors import UserError
from unshuffle.permutations import Criterion

Preset = Literal["demo", "small", "paper", "paper-literal"]
Tasks = Literal["auto", "S", "T", "S+T", "S&T"]
TaskName = Literal["spatial", "temporal", "rotation"]


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from and which of them are held back."""

    val_size: int = 100
    """|X_val|: samples per task drawn from the training samples and excluded from training; at most a fifth of them."""
    val_images: str | None = None
    """Take X_val of the spatial task from here instead: a folder, a store or shards that are not trained on."""
    val_videos: str | None = None
    """Take X_val of the temporal task from here instead, and of the spatial one if there are no images."""
    sibling_pattern: str = ""
    """Regular expression; files whose match (or first group) is equal stay on one side. UCF-101: '(v_.*_g[0-9]+)_c'."""
    max_bad_share: float = 0.1
    """Stop before training when more than this share of the files cannot be used."""
    image_short_side: int = 256
    """Images are stored at this short side."""
    frame_short_side: int = 128
    """Frames are stored at this short side."""
    frame_every: int = 1
    """Keep every n-th frame of a video when packing."""
    frame_span: int = 0
    """Draw a sample's frames from a random window of so many frames; 0: from the whole video, as in the paper."""
    encoding: Literal["raw", "jpeg"] = "raw"
    """How a folder is packed into the cache: raw is fast, jpeg is small."""
    cache: Path = Path("~/.cache/unshuffle")
    """Where folders are packed to, and what is known of shards is kept."""
    shard_window: int = 8
    """Tar shards that an epoch mixes at a time; more mix better, and need more of the cache when they are remote."""
    shard_cache_gb: float = 20.0
    """Disk space in data.cache for copies of remote shards, for images and for videos; 0: no copies."""
    workers: int = 2
    """Threads that prepare batches ahead of the training."""
    gpu_share: float = 0.5
    """Keep the packed data on the GPU when it takes no more than this share of its free memory; 0: never."""


@dataclass(frozen=True)
class SyntheticConfig:
    """The world that is drawn when no data is given."""

    version: Literal[1] = 1
    """Version of the drawing: a run of another one would not see the same world again."""
    images: int = 1500
    """Number of images."""
    clips: int = 600
    """Number of clips."""
    image_size: int = 96
    """Side of an image in pixels."""
    frame_size: int = 32
    """Side of a frame in pixels."""
    clip_frames: int = 16
    """Frames of a clip."""
    gallery: int = 600
    """Labelled images that the monitor retrieves from."""
    queries: int = 300
    """Labelled images that it retrieves for."""


@dataclass(frozen=True)
class PermutationConfig:
    """The permutation sets Ψ, one for each task."""

    spatial: int = 1000
    """|Ψ| of the spatial task."""
    temporal: int = 1000
    """|Ψ| of the temporal task."""
    criterion: Criterion = "maxmin"
    """maxmin: largest minimum Hamming distance; mean: largest mean distance, the paper's words."""
    include_identity: bool = False
    """Let the unshuffled order be one of the permutations."""
    spatial_file: Path | None = None
    """Take the spatial set from this .npy instead, as `unshuffle permutations` writes it."""
    temporal_file: Path | None = None
    """Take the temporal set from this .npy instead."""
    per_sample: int = 1
    """M: permutations of each sample that share one backbone pass; the paper uses 1."""


@dataclass(frozen=True)
class ShuffleConfig:
    """How a sample becomes shuffled crops, all of it on the device."""

    grid: int = 3
    """m: an image is cut into m x m tiles."""
    frames: int = 8
    """u: frames of a clip."""
    crop_size: int = 75
    """Side in pixels of a tile or frame as the network sees it."""
    image_share: float = 255 / 256
    """Side of the square that is cut out of an image before it is tiled, as a share of its short side."""
    tile_share: float = 64 / 85
    """Side of the random crop in a cell, as a share of the cell."""
    frame_share: float = 224 / 256
    """Side of the random crop in a frame, as a share of its short side."""
    shared_crop: bool = False
    """One crop and one jitter for all frames of a clip instead of one for each; the paper draws one for each."""
    mirror: bool = False
    """Mirror half of the images and clips, each as a whole; the paper does not say."""
    reverse: bool = False
    """Play half of the clips backwards; the paper does not say."""
    grey: float = 0.3
    """Share of the images that turn grey; from the author's public jigsaw, the paper does not say."""
    gamma: float = 0.3
    """Jitter: largest change of the logarithm of the exponent that lightens or darkens."""
    saturation: float = 0.3
    """Jitter: largest change of the saturation."""
    hue: float = 0.05
    """Jitter: largest turn of the hue, as a share of the colour circle."""
    frame_jitter: bool = True
    """Jitter the colours of frames too."""

    @property
    def tiles(self) -> int:
        """Number of tiles of an image."""
        return self.grid * self.grid


@dataclass(frozen=True)
class HeadConfig:
    """What turns the backbone's features of a sample's parts into one of |Ψ| classes."""

    kind: Literal["concat", "lstm"]
    """concat: fc6 of all parts side by side, then fc7; lstm: fc6 of the parts in turn, then the last state."""
    fc6: int
    """Width of fc6, for each part."""
    hidden: int
    """Width of fc7 or of the LSTM's state."""
    dropout: float = 0.0
    """Dropout after fc6 and after the hidden layer; the paper names none."""
    centre: bool = True
    """Subtract a sample's mean from its fc6 vectors and divide by their rms; the LSTM hardly learns without it."""


@dataclass(frozen=True)
class ModelConfig:
    """The network: a backbone that is kept and two heads that are thrown away."""

    backbone: str = "caffenet"
    """caffenet, caffenet-lrn, alexnet, tiny, resnet18, resnet50, torchvision:NAME or timm:NAME."""
    sync_bn: bool = False
    """With several processes, batch normalisation over the batch of all instead of each process's share."""
    spatial: HeadConfig = HeadConfig("concat", fc6=1024, hidden=4096)
    """Head of the spatial task."""
    temporal: HeadConfig = HeadConfig("lstm", fc6=512, hidden=256)
    """Head of the temporal task."""


@dataclass(frozen=True)
class GroupConfig:
    """How one group of weights is updated."""

    optimiser: Literal["sgd", "adamw"] = "sgd"
    """sgd has momentum; adamw has decoupled weight decay."""
    lr: float = 0.001
    """Learning rate before the schedule."""
    momentum: float = 0.9
    """Momentum of sgd; the first beta of adamw."""
    weight_decay: float = 5e-4
    """Weight decay."""


@dataclass(frozen=True)
class OptimConfig:
    """Length, batches and rates of the training."""

    iterations: int = 350_000
    """Training steps in all."""
    batch_size: int = 128
    """Samples of each task in one step, over all processes."""
    warmup: int = 0
    """Iterations over which the rates rise linearly from zero."""
    milestones: tuple[int, ...] = (200_000,)
    """Iterations at which the rates drop."""
    decay: float = 0.1
    """Factor of a drop."""
    backbone: GroupConfig = GroupConfig()
    """The backbone."""
    spatial: GroupConfig = GroupConfig()
    """The spatial head."""
    temporal: GroupConfig = GroupConfig()
    """The temporal head."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: the forward pass in bfloat16, and fused kernels where there are some; auto: on GPUs that have it."""


@dataclass(frozen=True)
class PolicyConfig:
    """Who proposes the permutations, and how the policy learns to."""

    sampler: Literal["uniform", "policy", "inverse", "hard-first", "easy-first", "exp3"] = "policy"
    """uniform: every permutation equally often; policy: the paper's; the others are its controls and rivals."""
    reward: Literal["error", "trials"] = "error"
    """error: the paper's, one for all; trials: for each group, the error after a short training that prefers it."""
    trial: int = 40
    """Iterations of a trial, which are undone; there is one for each group at the end of each episode."""
    interval: int = 3888
    """Iterations from the end of one episode to the end of the next; the paper's 90 episodes in 350,000."""
    batches: int = 100
    """K: batches of an episode, the last ones of the interval; the paper does not say how many."""
    action: Literal["sample", "batch"] = "sample"
    """Inside an episode, a group for each sample, or one for each batch as Algorithm 1 has it."""
    groups: int = 10
    """|C|: groups of what is equally hard."""
    grouped: Literal["permutations", "pairs"] = "permutations"
    """permutations: by how hard each is for all samples together, as in the paper; pairs: for each sample by itself."""
    candidates: int = 4
    """With pairs: permutations that are looked at for each that is trained on; the backbone is passed once for all."""
    lr: float = 0.01
    """Adam's rate for the policy."""
    entropy_weight: float = 0.2
    """Weight of the entropy in the objective; the paper does not give it."""
    average_decay: float = 0.9
    """Decay of the moving average that is subtracted from the reward."""
    scale_reward: bool = True
    """Divide what is left of the reward by its moving deviation, so that the entropy keeps its proportion to it."""
    least_deviation: float = 1e-3
    """Floor of that deviation: smaller rewards count as noise."""
    discount: float = 0.0
    """γ: weight of later rewards in the return of an episode; 0 is the one-step form."""
    horizon: int = 3
    """With a discount, rewards that make a return; the update waits for them."""
    size_prior: bool = True
    """A new policy draws every permutation equally often; off: every group, whatever its size."""
    start_below: float = 0.9
    """The policy starts once the error is below this share of chance; before, groups mean nothing. 2: at once."""
    prior_correction: bool = True
    """Add log q(ψ) to the training logits, so that the network does not learn how often it is asked what."""
    prior_floor: float = 0.1
    """Floor of q in that correction, as a share of 1/|Ψ|."""
    exploration: float = 0.1
    """Share of the draws that stay uniform over Ψ."""
    inverse_floor: float = 0.02
    """The inverse policy takes π for at least this."""
    least_spread: float = 0.5
    """Say so when the entropy of the draws falls below this share of that of uniform ones."""
    largest_share: float = 0.8
    """Say so when one group takes more than this share of the draws beyond its own size."""

    @property
    def learns_by_trial(self) -> bool:
        """Does the policy learn from trials, and not from its rewards? Its rivals never do."""
        return self.reward == "trials" and self.sampler in ("policy", "inverse")


@dataclass(frozen=True)
class MonitorConfig:
    """Nearest-neighbour retrieval while training: on the synthetic world, or on two folders by class."""

    gallery: Path | None = None
    """Folder with one subfolder of images per class, to retrieve from."""
    queries: Path | None = None
    """Folder with the same subfolders, to retrieve for."""
    limit: int = 2000
    """At most so many images of each, evenly over the classes."""


@dataclass(frozen=True)
class LogConfig:
    """How often a run reports and saves, in iterations."""

    train_every: int = 50
    """Losses and accuracies to metrics.jsonl and TensorBoard."""
    monitor_every: int = 5000
    """Retrieval of the monitor."""
    checkpoint_every: int = 1000
    """Checkpoints; one is also written at the end and when stopped."""
    keep_checkpoints: int = 2
    """Older ones are deleted."""
    pictures: bool = True
    """Draw pictures and write report.html at the end of the run, and keep some held-out samples for that."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    preset: Preset = "demo"
    """demo: 2 CPU cores, minutes. small: one GPU, minutes. paper: its numbers. paper-literal: its words."""
    images: str | None = None
    """Folder of images (any, nested, no labels), a packed store, or tar shards: 's3://bucket/img-{000..123}.tar'."""
    videos: str | None = None
    """Folder of videos, a packed store, or tar shards of videos or of frames."""
    out: Path | None = None
    """The run folder; by default the next free runs/PRESET-N."""
    init: Path | None = None
    """Start the backbone from these weights: a backbone.safetensors or a run folder."""
    tasks: Tasks = "auto"
    """S: tiles; T: frames; S+T: both in each step; S&T: tiles first, then frames; auto: what the data allows."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    data: DataConfig = field(default_factory=DataConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    permutations: PermutationConfig = field(default_factory=PermutationConfig)
    shuffle: ShuffleConfig = field(default_factory=ShuffleConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    log: LogConfig = field(default_factory=LogConfig)


def paper() -> Config:
    """The paper's numbers, from section 4.1 and appendix B.

    Ours where the paper is silent: fc6 vectors are centred, momentum and weight decay, the max-min criterion, the crop
    of a tile as a share of its cell, grey images, the strength of the colour jitter.
    """
    return Config(preset="paper")


def paper_literal() -> Config:
    """The paper to the letter where it speaks of the policy: one group for a batch, from the start, uncorrected."""
    policy = PolicyConfig(
        action="batch",
        size_prior=False,
        scale_reward=False,
        entropy_weight=0.01,
        start_below=2.0,
        prior_correction=False,
        exploration=0.0,
    )
    return replace(paper(), preset="paper-literal", policy=policy)


def small() -> Config:
    """One GPU, minutes, a few thousand real images and videos: what was found to learn best from so little."""
    head = GroupConfig("adamw", lr=5e-4, weight_decay=0.01)
    return Config(
        preset="small",
        data=DataConfig(workers=8),
        permutations=PermutationConfig(spatial=100, temporal=100, per_sample=32),
        shuffle=ShuffleConfig(mirror=True, reverse=True, frame_share=0.7),
        model=ModelConfig(temporal=HeadConfig("concat", fc6=512, hidden=1024)),
        optim=OptimConfig(
            iterations=20_000,
            warmup=500,
            milestones=(14_000, 18_000),
            backbone=GroupConfig("adamw", lr=1e-3, weight_decay=0.05),
            spatial=head,
            temporal=head,
        ),
        policy=PolicyConfig(
            interval=1000,
            batches=1000,
            groups=4,
            grouped="pairs",
            reward="trials",
            entropy_weight=0.5,
            trial=20,
        ),
        log=LogConfig(monitor_every=2000),
    )


def demo() -> Config:
    """Two CPU cores, a few minutes, the synthetic world."""
    return Config(
        preset="demo",
        data=DataConfig(image_short_side=96, frame_short_side=32),
        permutations=PermutationConfig(spatial=100, temporal=100, per_sample=8),
        shuffle=ShuffleConfig(frames=6, crop_size=24, image_share=1.0, frame_jitter=False),
        model=ModelConfig(
            backbone="tiny",
            spatial=HeadConfig("concat", fc6=128, hidden=512),
            temporal=HeadConfig("concat", fc6=128, hidden=512),
        ),
        optim=OptimConfig(
            iterations=400,
            batch_size=32,
            warmup=50,
            milestones=(300,),
            backbone=GroupConfig("adamw", lr=2e-3, weight_decay=0.01),
            spatial=GroupConfig("adamw", lr=2e-3, weight_decay=0.01),
            temporal=GroupConfig("adamw", lr=2e-3, weight_decay=0.01),
        ),
        policy=PolicyConfig(interval=25, batches=25),
        log=LogConfig(train_every=10, monitor_every=200, checkpoint_every=200),
    )


PRESETS: dict[Preset, Callable[[], Config]] = {
    "demo": demo,
    "small": small,
    "paper": paper,
    "paper-literal": paper_literal,
}


def preset_config(name: str) -> Config:
    """The preset of that name."""
    for preset, build in PRESETS.items():
        if preset == name:
            return build()
    raise UserError(f"there is no preset '{name}'; there are {', '.join(PRESETS)}")


def check(config: Config) -> None:
    """Refuse what cannot work, in one sentence."""
    for problem, sentence in [*_problems(config), *_impossible_sets(config), *_out_of_range(config)]:
        if problem:
            raise UserError(sentence)


def _problems(config: Config) -> list[tuple[bool, str]]:
    shuffle, monitor, policy = config.shuffle, config.monitor, config.policy
    heads = (("spatial", config.model.spatial), ("temporal", config.model.temporal))
    return [
        (shuffle.grid < 2, f"shuffle.grid is {shuffle.grid}, but a puzzle needs a grid of 2 or more"),
        (policy.groups < 2, f"policy.groups is {policy.groups}, but a choice needs 2 or more"),
        (shuffle.frames < 2, f"shuffle.frames is {shuffle.frames}, but an order needs 2 frames or more"),
        (config.optim.batch_size < 2, "optim.batch_size must be 2 or more: batch normalisation needs it"),
        (
            (monitor.gallery is None) != (monitor.queries is None),
            "monitor.gallery and monitor.queries go together: give both or neither",
        ),
        (
            policy.batches > policy.interval,
            f"policy.interval is {policy.interval}, but must be at least policy.batches, which is {policy.batches}",
        ),
        (
            policy.reward == "trials" and policy.discount > 0,
            "policy.reward trials looks at one episode alone: leave policy.discount at 0",
        ),
        (
            policy.grouped == "pairs" and policy.action == "batch",
            "policy.grouped pairs chooses for each sample: leave policy.action at sample",
        ),
        (
            policy.grouped == "pairs" and policy.groups > policy.candidates * config.permutations.per_sample,
            f"policy.groups is {policy.groups}, but a sample has only policy.candidates times permutations.per_sample, "
            f"{policy.candidates * config.permutations.per_sample}, candidates",
        ),
        *((min(head.fc6, head.hidden) < 1, f"model.{task}: fc6 and hidden must be 1 or more") for task, head in heads),
    ]


def _impossible_sets(config: Config) -> list[tuple[bool, str]]:
    permutations, shuffle = config.permutations, config.shuffle
    found = []
    for task, count, parts in (
        ("spatial", permutations.spatial, shuffle.tiles),
        ("temporal", permutations.temporal, shuffle.frames),
    ):
        existing = math.factorial(max(parts, 0)) - (not permutations.include_identity)
        found.append((count < 2, f"permutations.{task} is {count}, but a choice needs 2 or more"))
        found.append(
            (count > existing, f"permutations.{task} is {count}, but {parts} parts have only {existing} permutations")
        )
    return found


def _out_of_range(config: Config) -> list[tuple[bool, str]]:
    found = [(value < 1, f"{name} is {value}, but must be 1 or more") for name, value in _counts(config).items()]
    for name, value in _amounts(config).items():
        found.append((not 0 <= value < math.inf, f"{name} is {value}, but must be 0 or more"))
    for name, value in _shares(config).items():
        found.append((not 0 < value <= 1, f"{name} is {value}, but must be in (0, 1]"))
    for name, value in _probabilities(config).items():
        found.append((not 0 <= value <= 1, f"{name} is {value}, but must be in [0, 1]"))
    for name, group in _rates(config).items():
        found.append((not 0 < group.lr < math.inf, f"optim.{name}.lr is {group.lr}, but must be above 0"))
        found.append((not 0 <= group.momentum < 1, f"optim.{name}.momentum is {group.momentum}, but must be in [0, 1)"))
    found.append((config.seed >= 2**32, f"seed is {config.seed}, but must be below 2 to the power of 32"))
    return found


def _rates(config: Config) -> dict[str, GroupConfig]:
    return {"backbone": config.optim.backbone, "spatial": config.optim.spatial, "temporal": config.optim.temporal}


def _amounts(config: Config) -> dict[str, float]:
    return {
        "seed": config.seed,
        "optim.warmup": config.optim.warmup,
        "policy.lr": config.policy.lr,
        "policy.entropy_weight": config.policy.entropy_weight,
        "policy.start_below": config.policy.start_below,
        "data.frame_span": config.data.frame_span,
        "data.shard_cache_gb": config.data.shard_cache_gb,
        **{f"shuffle.{name}": getattr(config.shuffle, name) for name in ("gamma", "saturation", "hue")},
        **{f"optim.{name}.weight_decay": group.weight_decay for name, group in _rates(config).items()},
    }


FLOORS = ("prior_floor", "inverse_floor", "least_deviation")


def _shares(config: Config) -> dict[str, float]:
    return {
        "optim.decay": config.optim.decay,
        **{f"policy.{name}": getattr(config.policy, name) for name in FLOORS},
        **{f"shuffle.{name}": getattr(config.shuffle, name) for name in ("image_share", "tile_share", "frame_share")},
    }


POLICY_SHARES = ("exploration", "discount", "average_decay", "least_spread", "largest_share")


def _probabilities(config: Config) -> dict[str, float]:
    return {
        "shuffle.grey": config.shuffle.grey,
        "data.max_bad_share": config.data.max_bad_share,
        "data.gpu_share": config.data.gpu_share,
        **{f"policy.{name}": getattr(config.policy, name) for name in POLICY_SHARES},
        "model.spatial.dropout": config.model.spatial.dropout,
        "model.temporal.dropout": config.model.temporal.dropout,
    }


def _counts(config: Config) -> dict[str, int]:
    return {
        "data.val_size": config.data.val_size,
        "data.workers": config.data.workers,
        "data.frame_every": config.data.frame_every,
        "data.shard_window": config.data.shard_window,
        "permutations.per_sample": config.permutations.per_sample,
        **{
            f"policy.{name}": getattr(config.policy, name)
            for name in ("interval", "batches", "horizon", "trial", "candidates")
        },
        "optim.iterations": config.optim.iterations,
        "shuffle.crop_size": config.shuffle.crop_size,
        "monitor.limit": config.monitor.limit,
        **{f"synthetic.{name}": value for name, value in vars(config.synthetic).items()},
        **{f"log.{name}": value for name, value in vars(config.log).items() if name != "pictures"},
    }
