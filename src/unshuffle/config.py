"""One tree of dataclasses: the config of a run, its command line and its help.

The field defaults are the preset `paper`: what the paper states, and choices of ours where it states nothing or where a
task or the policy would not learn. The table in `docs/explanation/decisions.md` has the values of the presets beside
the paper's statements, with reasons; `tests/test_decisions.py` compares it with this module.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge, Gt, Interval

from unshuffle.errors import UnknownTaskError, UserError
from unshuffle.options import check_bounds, merge, read_yaml, typed
from unshuffle.permutations import Criterion
from unshuffle.wording import counted, did_you_mean

Preset = Literal["demo", "cpu", "small", "paper", "paper-literal"]
Logger = Literal["wandb", "trackio"]
TaskName = Literal["spatial", "temporal", "rotation", "instance"]
TASK_SYMBOLS: dict[str, str] = {"S": "spatial", "T": "temporal", "R": "rotation", "I": "instance"}
"""What `--tasks` calls each task."""

ENTRY_POINTS = "unshuffle.tasks"
"""Group of the entry points by which an installed package names modules that register tasks."""

AUTO_TASKS: dict[str, tuple[str, ...]] = {"small": ("spatial", "temporal", "instance"), "cpu": ("instance",)}
"""What `--tasks auto` means in a preset whose tasks are not the paper's S+T."""

PRETRAINED = "pretrained"
"""Name of the weights that come with the package, wherever weights are given."""

VIDEO_FRAMES = 10
"""Evenly spaced frames whose mean stands for a video, wherever features are computed."""

FEATURE_BATCH = 64
"""Images in one forward pass that computes features."""

Pool = Literal["avg", "max", "grid", "flat"]
"""How the last map of a backbone becomes a vector: the mean of each channel, its maximum, its means in the cells of a
grid, or all numbers."""

NEAR_DUPLICATE = 0.9
"""Similarity of features from which two items count as near-duplicates."""

STATES = "evaluations"
"""Folder in the cache with the states of evaluations without --out, each of which is deleted at the end."""

Count = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Fraction = Annotated[float, Interval(gt=0, le=1)]
Probability = Annotated[float, Interval(ge=0, le=1)]
FractionRange = Annotated[tuple[Fraction, ...], Interval(ge=2, le=2)]
PositiveRange = Annotated[tuple[Positive, ...], Interval(ge=2, le=2)]
Addresses = str | tuple[str, ...]
"""One source of data, or several: folders, packed stores, split lists, or one pattern of tar shards."""


@dataclass(frozen=True)
class LimitsConfig:
    """What decoding one file may take; a file that needs more is skipped and listed with the reason."""

    max_pixels: Annotated[int, Interval(ge=1, le=178_956_970)] = 120_000_000
    """Width times height of an image or a frame; Pillow itself refuses more than 178,956,970."""
    max_frames: Count = 500_000
    """Frames of a video; about five hours at 25 frames per second."""
    max_seconds: Positive = 900.0
    """Seconds that decoding one file may take; raise it for films of several hours or a slow machine."""
    memory_gb: Positive = 2.0
    """Memory in GB for all files that are decoded at the same time; large ones wait for each other."""


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from, how they are stored, and which are held out for validation and test."""

    val_size: Count = 100
    """|X_val|: samples of each task held out for validation, at most a fifth; more make the reward less noisy.
    Validation takes centre crops and evenly spaced frames, training random ones."""
    val_images: Addresses | None = None
    """Images to validate on instead (folder, packed store or tar shards); nothing is held out of --images then."""
    val_videos: Addresses | None = None
    """Videos to validate on instead; also for tasks on images when no images are given."""
    test_size: Annotated[int, Ge(0)] = 100
    """Samples of each task held out as the pretext test set, at most a tenth; 0: none. Neither the policy nor its
    rollouts see them, and the final errors are measured on them."""
    test_images: Addresses | None = None
    """Images to test on instead, all of them (folder, packed store or tar shards); nothing is held out for it then."""
    test_videos: Addresses | None = None
    """Videos to test on instead, all of them; also for tasks on images when no images are given."""
    sibling_pattern: str = ""
    """Regular expression: files with the same match (or first group) stay on one side of each split. For UCF-101, whose
    clips are cut from common scenes: '(v_.*_g[0-9]+)_c'."""
    max_bad_fraction: Probability = 0.1
    """Stop before training if a larger fraction of the files cannot be used; raise it for scraped data. All of them
    are listed in a file."""
    image_short_side: Count = 256
    """Short side in pixels at which images are stored."""
    frame_short_side: Count = 128
    """Short side in pixels at which video frames are stored."""
    frame_every: Count = 1
    """Store every n-th frame of a video; raise it for long videos or high frame rates."""
    clip_frames: Annotated[int, Ge(0)] = 250
    """Videos with twice as many frames or more, after frame_every, are stored as windows of so many frames, each a clip
    of its own; shorter ones are one clip. All windows of a video stay on one side of each split. 0: never cut."""
    clips_per_video: Count = 8
    """Windows of a long video at most, evenly spread over it; more give more samples and take more disk space."""
    encoding: Literal["auto", "raw", "jpeg"] = "auto"
    """How a folder is packed into the cache: raw is fastest to read and can stay on the GPU, jpeg takes about a tenth
    of the space. auto: raw, or jpeg if that would take more than max_raw_gb."""
    max_raw_gb: NonNegative = 10.0
    """With encoding auto: largest expected size in GB, of the images and of the videos each, that is packed raw."""
    cache: Path = Path("~/.cache/unshuffle")
    """Folder for packed data and for the indices of tar shards; may be deleted at any time."""
    shard_window: Count = 8
    """Tar shards that an epoch mixes at a time; more mix better and need more of the cache if they are remote."""
    shard_cache_gb: NonNegative = 20.0
    """Disk space in GB for copies of remote shards, for images and for videos each; 0 keeps no copies."""
    workers: Count = 2
    """Threads that prepare batches ahead of the training; raise it when the log shows that it waits for data."""
    limits: LimitsConfig = LimitsConfig()
    gpu_memory_fraction: Probability = 0.5
    """Keep the packed data on the GPU if it takes no more than this fraction of the free memory; 0 never does."""


@dataclass(frozen=True)
class SyntheticConfig:
    """The synthetic world that stands in when no data is given."""

    version: Literal[1] = 1
    """Version of the renderer: runs of different versions do not see the same world."""
    images: Count = 1500
    """Number of images."""
    clips: Count = 600
    """Number of clips."""
    image_size: Count = 96
    """Side of an image in pixels."""
    frame_size: Count = 32
    """Side of a frame in pixels."""
    clip_frames: Count = 16
    """Frames of a clip."""
    gallery: Count = 600
    """Labelled images in the monitor's gallery."""
    queries: Count = 300
    """Labelled images that the monitor uses as queries."""


@dataclass(frozen=True)
class PermutationConfig:
    """How the permutation sets Ψ of the ordering tasks are chosen and used."""

    criterion: Criterion = "mean"
    """mean: largest mean Hamming distance to those chosen before, as in the paper; maxmin: largest minimum distance."""
    include_identity: bool = False
    """Let the unshuffled sample be one of the classes."""
    per_sample: Count = 8
    """M: permutations of each sample that share one backbone pass; the paper has 1. More are nearly free."""


@dataclass(frozen=True)
class AugmentationConfig:
    """Random changes of a sample in training, computed on the device; names as in torchvision."""

    hflip: Probability = 0.0
    """Probability that an image or clip is flipped horizontally as a whole; not specified in the paper."""
    grayscale: Probability = 0.0
    """Probability that an image becomes grayscale; the paper does not mention it, the author's jigsaw has 0.3."""
    gamma: NonNegative = 0.3
    """Colour jitter: largest change of the logarithm of the exponent that brightens or darkens."""
    saturation: NonNegative = 0.3
    """Colour jitter: largest change of the saturation."""
    hue: NonNegative = 0.05
    """Colour jitter: largest rotation of the hue, as a fraction of the colour circle."""


@dataclass(frozen=True)
class HeadConfig:
    """The classifier of permutations on top of the backbone's features of a sample's parts."""

    kind: Literal["concat", "lstm"]
    """concat: fc6 of all parts concatenated, then fc7; lstm: fc6 of the parts as a sequence, then the last state."""
    fc6: Count
    """Width of fc6, which embeds each part."""
    hidden: Count
    """Width of fc7 or of the LSTM's state."""
    dropout: Probability = 0.0
    """Dropout after fc6 and after the hidden layer; the paper names none, and 0.5 delays leaving chance."""
    centre: bool = True
    """Subtract a sample's mean from its fc6 embeddings and divide by their rms; the LSTM hardly learns without it."""


@dataclass(frozen=True)
class OptimiserConfig:
    """The optimiser of one group of parameters."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """sgd: as in the paper; adamw: with decoupled weight decay, learns faster from little data."""
    lr: Positive = 0.001
    """Learning rate before warm-up and decay."""
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Momentum of sgd; the first beta of adamw."""
    weight_decay: NonNegative = 5e-4
    """Weight decay."""


@dataclass(frozen=True)
class TaskConfig:
    """What every task has."""

    fixed_choices: ClassVar[bool] = True
    """Whether training and validation choose among equally many answers, and so have one chance level."""
    crop_size: Count = 75
    """Side in pixels of a crop as the backbone sees it; a network of timm that refuses it gets the next larger one."""
    batch_size: Annotated[int, Ge(0)] = 0
    """Samples of this task in a step, over all processes; 0 is optim.batch_size."""
    loss_weight: Positive = 1.0
    """Weight of the task's loss in the sum over all tasks."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """Optimiser of the task's head."""


@dataclass(frozen=True)
class OrderingConfig(TaskConfig):
    """What every ordering task has."""

    head: HeadConfig = HeadConfig("concat", fc6=1024, hidden=4096)
    """Classifier of permutations."""
    permutations: Annotated[int, Ge(2)] = 1000
    """|Ψ|: number of permutations, the classes to tell apart; fewer are learned sooner."""
    permutation_file: Path | None = None
    """Read Ψ from this .npy file, as `unshuffle permutations` writes it, instead of choosing it."""

    @property
    def parts(self) -> int:
        """Number of parts of a sample, which are shuffled."""
        raise NotImplementedError


@dataclass(frozen=True)
class SpatialConfig(OrderingConfig):
    """Spatial task (S): put the shuffled tiles of an image back in order."""

    grid: Annotated[int, Ge(2)] = 3
    """m: an image is divided into m x m tiles."""
    image_fraction: Fraction = 255 / 256
    """Side of the square that is cropped from an image before it is tiled, as a fraction of its short side."""
    tile_fraction: Fraction = 64 / 85
    """Side of the random crop in a cell of the grid, as a fraction of the cell; smaller ones leave wider gaps."""

    @property
    def parts(self) -> int:
        """Number of tiles."""
        return self.grid * self.grid


@dataclass(frozen=True)
class TemporalConfig(OrderingConfig):
    """Temporal task (T): put the shuffled frames of a clip back in order."""

    optimiser: OptimiserConfig = OptimiserConfig("adamw", lr=5e-4, weight_decay=0.01)
    """Optimiser of the task's head; with SGD and one permutation of each sample the LSTM stayed at chance for 3,000
    iterations."""
    head: HeadConfig = HeadConfig("lstm", fc6=512, hidden=256)
    """Classifier of permutations."""
    frames: Annotated[int, Ge(2)] = 8
    """u: frames sampled from a clip."""
    frame_span: Annotated[int, Ge(0)] = 0
    """Sample the frames from a random window of so many frames; 0 is the whole clip, as in the paper."""
    crop_fraction: Fraction = 224 / 240
    """Side of the random crop of a frame, as a fraction of its short side; the paper crops 224 px, and frames of
    UCF-101 have 320 x 240. The crop may lie anywhere in the frame."""
    shared_crop: bool = False
    """Use one crop and one colour jitter for all frames of a clip; makes the task easier and the features worse."""
    colour_jitter: bool = True
    """Apply colour jitter to frames too."""
    reverse: bool = False
    """Play half of the clips backwards; not specified in the paper."""

    @property
    def parts(self) -> int:
        """Number of frames."""
        return self.frames


@dataclass(frozen=True)
class ClassificationConfig(TaskConfig):
    """Options of tasks that classify image crops."""

    crop_fraction: Fraction = 0.7
    """Side of the random crop of an image, or of a cell of its grid, as a fraction of the short side."""
    hidden: Count = 1024
    """Width of the head's hidden layer."""


@dataclass(frozen=True)
class RotationConfig(ClassificationConfig):
    """Rotation prediction (R): tell which of four rotations an image has (Gidaris et al. 2018)."""

    crop_size: Count = 112
    """Side in pixels of a crop as the backbone sees it."""
    crop_fraction: Fraction = 0.7
    """Side of the random crop of an image, as a fraction of its short side."""


@dataclass(frozen=True)
class ViewConfig:
    """Random changes of each view of the instance task, computed on the device: torchvision's transforms and names.

    The defaults are those of SimCLR, but for the smallest crops."""

    scale: FractionRange = (0.2, 1.0)
    """RandomResizedCrop: smallest and largest area of the crop, as fractions of the image's square; SimCLR has 0.08 for
    a million images."""
    ratio: PositiveRange = (3 / 4, 4 / 3)
    """RandomResizedCrop: smallest and largest width of the crop as a multiple of its height."""
    hflip: Probability = 0.5
    """RandomHorizontalFlip: probability that a view is flipped."""
    jitter: Probability = 0.8
    """ColorJitter: probability that the colours of a view change."""
    brightness: NonNegative = 0.8
    """ColorJitter: largest change of the brightness, as a fraction."""
    contrast: NonNegative = 0.8
    """ColorJitter: largest change of the contrast, as a fraction."""
    saturation: NonNegative = 0.8
    """ColorJitter: largest change of the saturation, as a fraction."""
    hue: Annotated[float, Interval(ge=0, le=0.5)] = 0.2
    """ColorJitter: largest shift of the hue, as a fraction of the colour circle."""
    grayscale: Probability = 0.2
    """RandomGrayscale: probability that a view becomes grayscale."""
    blur: Probability = 0.5
    """GaussianBlur: probability that a view is blurred, by a kernel of a tenth of its side."""
    sigma: PositiveRange = (0.1, 2.0)
    """GaussianBlur: smallest and largest standard deviation, in pixels of the view."""


@dataclass(frozen=True)
class InstanceConfig(TaskConfig):
    """Instance discrimination (I): tell which two views show the same image (SimCLR, Chen et al. 2020)."""

    fixed_choices = False
    crop_size: Count = 112
    """Side in pixels of a view as the backbone sees it."""
    positives: Literal["views", "frames"] = "views"
    """The two views that belong together. views: of one image; frames: of two frames of a clip, which needs videos."""
    frame_span: Annotated[int, Ge(0)] = 0
    """With frames: sample the two from a random window of so many frames; 0 is the whole clip."""
    views: ViewConfig = ViewConfig()
    temperature: Positive = 0.2
    """Temperature of the NT-Xent loss: lower values weight the negatives that look most alike more."""
    hidden: Count = 2048
    """Width of the projection head's hidden layer."""
    output: Count = 128
    """Dimensions of the projections that are compared."""


REGISTERED: dict[str, TaskConfig] = {}
"""Default sections of the tasks that are not part of the package, which `register_task` adds."""


@dataclass(frozen=True)
class ModelConfig:
    """The backbone, which is kept; the tasks' heads are discarded after training."""

    backbone: str = "caffenet"
    """caffenet, caffenet-lrn, alexnet, tiny, resnet18, resnet50, torchvision:NAME or timm:NAME."""
    compile: bool = False
    """Compile the backbone with torch.compile on a GPU: up to a minute at the start; steps may be faster. Without
    effect on caffenet, which has kernels of its own."""
    sync_bn: bool = False
    """Compute batch normalisation over the whole batch instead of over each process's slice of it."""


@dataclass(frozen=True)
class OptimConfig:
    """Length of the training, batch size and learning-rate schedule."""

    iterations: Count = 350_000
    """Training steps in all."""
    epochs: Positive | None = None
    """Passes over the training samples of the task with the largest batches, instead of optim.iterations, which is set
    to the number of steps once the data is known; warm-up and milestones are scaled with it. With --tasks in stages
    (S&T), passes in each stage."""
    batch_size: Annotated[int, Ge(2)] = 128
    """Samples of each task in a step, over all processes."""
    warmup: Annotated[int, Ge(0)] = 0
    """Iterations over which the learning rates rise linearly from zero; with stages, see optim.milestones."""
    schedule: Literal["steps", "cosine"] = "steps"
    """Learning rates after the warm-up. steps: multiplied by optim.decay at each of optim.milestones, as in the paper;
    cosine: half a cosine from the full learning rates down to zero at the last iteration, without milestones."""
    milestones: tuple[int, ...] = (200_000,)
    """Iterations at which the learning rates are multiplied by optim.decay. With --tasks in stages (S&T), warm-up and
    milestones are shortened to the length of a stage, and each stage goes through all of them."""
    decay: Fraction = 0.1
    """Factor at each milestone."""
    backbone: OptimiserConfig = OptimiserConfig()
    """Optimiser of the backbone; each task's section has that of its head."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: forward pass in bfloat16, with fused kernels where there are some. auto: bf16 on GPUs with our kernels and
    on CPUs with avx512_bf16, where most networks train faster; fp32 elsewhere."""
    max_skipped_steps: Annotated[int, Ge(0)] = 20
    """A step whose loss or gradients are not finite is skipped. Stop when more than this many are skipped in a row, or
    more than this many and a tenth of all; 0 stops at the first one."""


@dataclass(frozen=True)
class PolicyConfig:
    """The sampler of permutations of the ordering tasks, and how it learns."""

    sampler: Literal["uniform", "reinforce", "rollouts", "exp3", "hard-first", "easy-first"] = "reinforce"
    """uniform: all permutations alike; reinforce: the paper's policy; rollouts: compare the groups by short rollouts;
    exp3: a bandit; hard-first, easy-first: fixed preferences. All but uniform and reinforce are ours."""
    inverse: bool = False
    """Sample what the sampler would avoid: the control of appendix F. Probabilities are proportional to p² / π, for the
    probabilities p of an untrained sampler, so that its inverse is itself."""
    grouping: Literal["permutations", "pairs"] = "permutations"
    """permutations: by difficulty over all samples, as in the paper; pairs: (sample, permutation) pairs, by difficulty
    for each sample."""
    num_groups: Annotated[int, Ge(2)] = 10
    """|C|: number of groups; at most |Ψ|."""
    candidates: Count = 4
    """With pairs: permutations classified for each one trained on; more sharpen the preference and cost head time."""
    interval: Count = 500
    """Iterations from the end of one episode to the end of the next, and between validations of all tasks. A policy
    needs a few hundred episodes, more if its reward is noisy; the paper has 90 in 350,000 iterations: 3888."""
    batches: Count = 500
    """K: batches of an episode, the last ones of the interval; the paper does not give it."""
    action: Literal["mixture", "batch"] = "mixture"
    """What reinforce chooses, and a reward belongs to. batch: one group for each batch, as in Algorithm 1 (hard-first
    and easy-first then do so too); mixture: one mixture over all groups for each episode, which mixes every batch."""
    mixture_noise: Positive = 1.0
    """Std of the Gaussian noise on the logits by which an episode's mixture varies; less explores less."""
    sorted_groups: bool = True
    """Let the policy network see its groups hardest first, with sizes as fractions of |Ψ|; off: in the order of
    k-means, with sizes as numbers of permutations, as in the paper."""
    rollout_iterations: Count = 40
    """Iterations of a rollout; each episode ends with one rollout per group, and they are undone afterwards."""
    lr: NonNegative = 0.001
    """Learning rate of Adam for the policy network; the paper starts with 0.01, which lets noise move the policy."""
    entropy_weight: NonNegative = 1.0
    """Weight of the entropy in the objective; larger values keep the sampling closer to uniform. The paper
    adds the entropy without giving its weight."""
    reward_average_decay: Probability = 0.9
    """Decay of the moving average that is subtracted from the reward; closer to 1 averages over more episodes."""
    scale_reward: bool = True
    """Divide the centred reward by its moving mean absolute deviation, to keep its proportion to the entropy term."""
    min_reward_std: Fraction = 1e-3
    """Lower bound of that divisor: smaller rewards count as noise."""
    discount: Probability = 0.0
    """γ: each reward also updates earlier episodes, weighted by γ per episode; 0 updates the last episode only."""
    size_prior: bool = True
    """A new policy samples every permutation equally often; off: every group, whatever its size."""
    start_below: NonNegative = 0.96
    """Sample uniformly until the error first falls below this fraction of chance: groups mean nothing above it. 2:
    start at once."""
    prior_correction: bool = True
    """Add log q(ψ) to the training logits, so that the classifier is not biased by the sampling distribution; only
    groups of permutations define q."""
    prior_floor: Fraction = 0.1
    """Lower bound of q in that correction, as a fraction of 1/|Ψ|."""
    exploration: Probability = 0.1
    """Fraction of the samples that stay uniform over Ψ."""
    inverse_floor: Fraction = 0.02
    """With inverse: lower bound of a group's probability before it is inverted, as a fraction of an untrained one's."""
    min_entropy_fraction: Probability = 0.5
    """Warn when the entropy of the sampling distribution falls below this fraction of that of uniform sampling."""
    max_group_fraction: Probability = 0.8
    """Warn when one group gets more than this fraction of the samples beyond its own size."""

    @property
    def name(self) -> str:
        """The sampler's name in tables and figures, such as `inverse reinforce`."""
        return f"inverse {self.sampler}" if self.inverse else self.sampler


@dataclass(frozen=True)
class MonitorConfig:
    """Nearest-neighbour retrieval during training: on the synthetic world, or on labelled data."""

    gallery: str | None = None
    """Labelled images to retrieve from: class folders, a packed store, tar shards, or another source of `evaluate`."""
    queries: str | None = None
    """Labelled query images, with the same classes."""
    limit: Count = 2000
    """Largest number of images of each, evenly over the classes."""


@dataclass(frozen=True)
class LogConfig:
    """How often a run logs and saves, in iterations, and with which loggers."""

    to: tuple[Logger, ...] = ()
    """Loggers beside metrics.jsonl and TensorBoard: wandb, trackio or both (wandb,trackio); each needs its package.
    They get all curves, the pictures and the config, and stay on this machine: wandb is offline unless WANDB_MODE says
    otherwise, trackio local unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL is set."""
    project: str = "unshuffle"
    """Project in wandb and trackio; the run there has the name of the run folder."""
    train_every: Count = 50
    """Iterations between losses and accuracies in metrics.jsonl and TensorBoard."""
    monitor_every: Count = 5000
    """Iterations between retrievals of the monitor, and between errors on the pretext test set."""
    checkpoint_every: Count = 1000
    """Iterations between checkpoints; one is also written at the end and when interrupted."""
    keep_checkpoints: Count = 2
    """Number of checkpoints to keep; older ones are deleted."""
    pictures: bool = True
    """Keep some held-out samples, and draw pictures and write report.html at the end of the run."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    preset: Preset = "demo"
    """demo: 2 CPU cores, minutes, from scratch; the default without data. cpu: own data on a CPU, minutes, from the
    weights that come with the package; the default with data and no GPU. small: one GPU, minutes, the best recipe for
    little data; the default with data and a GPU. paper: the published hyper-parameters with the few changes that make
    both tasks learn and the reward less noisy. paper-literal: exactly what the paper states, whether it learns or not.
    demo, paper and paper-literal sample permutations by REINFORCE, the others uniformly."""
    images: Addresses | None = None
    """Images without labels: one folder or several, flat or nested, packed stores, or tar shards such as
    's3://bucket/img-{000..123}.tar'."""
    videos: Addresses | None = None
    """Videos: one folder or several, packed stores, tar shards of videos or frames, or an official split list such as
    trainlist01.txt of UCF-101, for its training videos alone."""
    out: Path | None = None
    """The run folder; by default the next free runs/PRESET-N."""
    init: Path | None = None
    """Initialise the backbone from these weights: a weights file, a run folder, hf:OWNER/NAME for weights in the local
    cache of Hugging Face, or pretrained for the weights that come with the package."""
    tasks: str = "auto"
    """S: spatial, T: temporal, R: rotation, I: instance discrimination. Joined by +, they are trained jointly (S+T+I);
    by &, one after the other for equal numbers of iterations, each with the whole learning-rate schedule (S&T). auto:
    S+T, in the preset small S+T+I, in cpu I; without T if there are no videos."""
    seed: Annotated[int, Interval(ge=0, lt=2**32)] = 0
    """Seed of everything random."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    data: DataConfig = field(default_factory=DataConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    spatial: SpatialConfig = field(default_factory=SpatialConfig)
    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    rotation: RotationConfig = field(default_factory=RotationConfig)
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    permutations: PermutationConfig = field(default_factory=PermutationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    log: LogConfig = field(default_factory=LogConfig)
    registered: Mapping[str, TaskConfig] = field(default_factory=dict)
    """Sections of tasks that are not part of the package, by name."""

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The tasks that are trained jointly, for each stage of the training in turn."""
        if self.tasks == "auto":
            without_videos = self.images is not None and self.videos is None
            tasks = AUTO_TASKS.get(self.preset, ("spatial", "temporal"))
            return (tuple(task for task in tasks if not (task == "temporal" and without_videos)),)
        stages = tuple(tuple(_task(symbol, self.tasks) for symbol in text.split("+")) for text in self.tasks.split("&"))
        names = [name for stage in stages for name in stage]
        if len(set(names)) < len(names):
            raise UserError(f"tasks is '{self.tasks}', but a task can occur only once")
        return stages

    @property
    def stage_ends(self) -> tuple[int, ...]:
        """The iteration at which each stage ends; all stages have equally many iterations, up to rounding."""
        count = len(self.stages)
        return tuple(self.optim.iterations * number // count for number in range(1, count + 1))

    def stage_at(self, iteration: int) -> int:
        """Return the index of the stage that an iteration belongs to; the last stage has no end."""
        return sum(iteration >= end for end in self.stage_ends[:-1])

    def schedule_iteration(self, iteration: int) -> int:
        """Return the iteration of the learning-rate schedule that an iteration of the training is at.

        Each stage goes through the whole schedule of `optim`, scaled to the length of the stage.
        """
        begin, length = self._stage_span(self.stage_at(iteration))
        return (iteration - begin) * self.optim.iterations // length

    @property
    def lr_changes(self) -> tuple[int, ...]:
        """The iterations at which the learning rates drop, and those at which a stage starts the schedule again."""
        changes = set(self.stage_ends[:-1])
        for stage in range(len(self.stages)):
            begin, length = self._stage_span(stage)
            if self.optim.schedule == "cosine":  # it never drops
                continue
            drops = (begin + -(-milestone * length // self.optim.iterations) for milestone in self.optim.milestones)
            changes.update(drop for drop in drops if self.stage_at(drop) == stage)
        return tuple(sorted(changes))

    def _stage_span(self, stage: int) -> tuple[int, int]:
        """Return the first iteration of a stage and its length."""
        bounds = (0, *self.stage_ends)
        return bounds[stage], bounds[stage + 1] - bounds[stage]

    @property
    def task_names(self) -> list[str]:
        """All tasks of the run, in the order of the config's sections."""
        chosen = {name for stage in self.stages for name in stage}
        return [name for name in TASK_SYMBOLS.values() if name in chosen]

    def section(self, task: str) -> TaskConfig:
        """The section of a task."""
        if task in REGISTERED:
            return self.registered.get(task, REGISTERED[task])
        section: TaskConfig = getattr(self, task)
        return section

    def batch_size(self, task: str) -> int:
        """Samples of a task in a step, over all processes."""
        return self.section(task).batch_size or self.optim.batch_size


def _task(symbol: str, tasks: str) -> str:
    if symbol not in TASK_SYMBOLS:
        load_registered_tasks()
    if symbol not in TASK_SYMBOLS:
        known = ", ".join(f"{symbol} ({name})" for symbol, name in TASK_SYMBOLS.items())
        policy = "; for the policy give --policy.sampler reinforce" if symbol == "P" else ""
        raise UserError(f"tasks is '{tasks}', but '{symbol}' is no task: join {known} by + or &, or use auto{policy}")
    return TASK_SYMBOLS[symbol]


def load_registered_tasks() -> None:
    """Import the modules of installed packages that register tasks."""
    from importlib.metadata import entry_points  # slow, and rarely needed

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # of any kind: it is the code of another package
            raise UserError(
                f"the module {entry.value}, which registers tasks, cannot be imported "
                f"({type(error).__name__}: {error}): repair or uninstall its package"
            ) from error


def paper() -> Config:
    """The published hyper-parameters with the few changes that make both tasks learn and the reward less noisy."""
    return Config(preset="paper")


def paper_literal() -> Config:
    """Exactly what the paper states, whether it learns or not; what it does not mention is left out."""
    sgd = OptimiserConfig(momentum=0.0, weight_decay=0.0)
    spatial, temporal = SpatialConfig(optimiser=sgd), TemporalConfig(optimiser=sgd)
    return Config(
        preset="paper-literal",
        data=DataConfig(clip_frames=0),
        optim=OptimConfig(backbone=sgd),
        spatial=replace(spatial, head=replace(spatial.head, centre=False)),
        temporal=replace(temporal, head=replace(temporal.head, centre=False)),
        permutations=PermutationConfig(per_sample=1),
        policy=PolicyConfig(
            interval=3888,
            batches=100,
            action="batch",
            sorted_groups=False,
            size_prior=False,
            scale_reward=False,
            lr=0.01,
            entropy_weight=0.01,
            start_below=2.0,
            prior_correction=False,
            exploration=0.0,
        ),
    )


def small() -> Config:
    """One GPU, minutes, thousands of real images and videos: the recipe whose features are best with so little."""
    optimiser = OptimiserConfig("adamw", lr=5e-4, weight_decay=0.01)
    return Config(
        preset="small",
        data=DataConfig(workers=8),
        augmentation=AugmentationConfig(hflip=0.5, grayscale=0.3),
        optim=OptimConfig(
            iterations=20_000,
            batch_size=512,
            warmup=500,
            schedule="cosine",
            milestones=(),
            backbone=OptimiserConfig("adamw", lr=1e-3, weight_decay=0.05),
        ),
        spatial=SpatialConfig(permutations=100, batch_size=32, loss_weight=0.03, optimiser=optimiser),
        temporal=TemporalConfig(
            permutations=100,
            batch_size=16,
            loss_weight=0.03,
            optimiser=optimiser,
            head=HeadConfig("concat", fc6=512, hidden=1024),
            crop_fraction=0.7,
            reverse=True,
        ),
        rotation=RotationConfig(crop_size=192, batch_size=128, optimiser=optimiser),
        instance=InstanceConfig(crop_size=192, temperature=0.1, optimiser=optimiser),
        permutations=PermutationConfig(criterion="maxmin", per_sample=32),
        # the other options apply only with --policy.sampler rollouts
        policy=PolicyConfig(
            sampler="uniform",
            grouping="pairs",
            prior_correction=False,
            num_groups=4,
            interval=2000,
            batches=2000,
            rollout_iterations=8,
            entropy_weight=0.5,
            start_below=0.9,
        ),
        log=LogConfig(monitor_every=2000),
    )


def cpu() -> Config:
    """Own images or videos on a CPU: the weights of the package, adapted to them by instance discrimination."""
    return Config(
        preset="cpu",
        init=Path(PRETRAINED),
        optim=OptimConfig(
            iterations=250,
            batch_size=64,
            warmup=20,
            schedule="cosine",
            milestones=(),
            backbone=OptimiserConfig("adamw", lr=1e-4, weight_decay=0.05),
        ),
        instance=InstanceConfig(
            crop_size=144, temperature=0.1, optimiser=OptimiserConfig("adamw", lr=1e-3, weight_decay=0.01)
        ),
        policy=PolicyConfig(sampler="uniform", interval=50, batches=50),
        log=LogConfig(train_every=10, monitor_every=125, checkpoint_every=50),
    )


def demo() -> Config:
    """Two CPU cores, a few minutes, the synthetic world."""
    optimiser = OptimiserConfig("adamw", lr=2e-3, weight_decay=0.01)
    head = HeadConfig("concat", fc6=128, hidden=512)
    return Config(
        preset="demo",
        data=DataConfig(image_short_side=96, frame_short_side=32),
        augmentation=AugmentationConfig(grayscale=0.3),
        model=ModelConfig(backbone="tiny"),
        optim=OptimConfig(
            iterations=400,
            batch_size=32,
            warmup=50,
            milestones=(300,),
            backbone=optimiser,
            precision="fp32",  # its figures differ between CPUs by rounding alone
        ),
        spatial=SpatialConfig(crop_size=24, permutations=100, image_fraction=1.0, head=head, optimiser=optimiser),
        temporal=TemporalConfig(
            crop_size=24,
            permutations=100,
            frames=6,
            crop_fraction=7 / 8,
            colour_jitter=False,
            head=head,
            optimiser=optimiser,
        ),
        rotation=RotationConfig(crop_size=48, hidden=256, optimiser=optimiser),
        instance=InstanceConfig(crop_size=48, hidden=256, output=64, optimiser=optimiser),
        permutations=PermutationConfig(criterion="maxmin"),
        policy=PolicyConfig(interval=25, batches=25, lr=0.01, entropy_weight=0.5, start_below=0.9),
        log=LogConfig(train_every=10, monitor_every=200, checkpoint_every=200),
    )


PRESETS: dict[str, Callable[[], Config]] = {
    "demo": demo,
    "cpu": cpu,
    "small": small,
    "paper": paper,
    "paper-literal": paper_literal,
}


GPU_PRESETS = frozenset({"small", "paper", "paper-literal"})
"""Presets that take days without a GPU."""
CPU_PRESET = "cpu"
"""The preset to take instead of them without a GPU."""


def data_preset(has_gpu: bool) -> str:
    """Return the preset for own data where none is chosen."""
    return "small" if has_gpu else CPU_PRESET


def preset_config(name: str) -> Config:
    """Return the preset of that name."""
    if name not in list(PRESETS):  # in a YAML file it may be anything
        raise UserError(f"there is no preset '{name}'; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()


def check(config: Config) -> None:
    """Raise a UserError for values that are out of bounds or do not fit together."""
    check_bounds(config)
    iterations, stages = config.optim.iterations, len(config.stages)
    if stages > iterations:
        raise UserError(
            f"tasks {config.tasks} needs at least {stages} iterations, but optim.iterations is {iterations}"
        )
    if (config.monitor.gallery is None) != (config.monitor.queries is None):
        raise UserError("monitor.gallery and monitor.queries go together: give both or neither")
    for name, section in config.registered.items():
        check_bounds(section, f"{name}.")
    _check_data(config)
    _check_policy(config.policy, config.permutations.per_sample)
    for name in ("scale", "ratio", "sigma"):
        low, high = getattr(config.instance.views, name)
        if low > high:
            raise UserError(f"instance.views.{name} is {low} {high}, but the smaller number must come first")
    for name in config.task_names:
        section = config.section(name)
        if section.batch_size == 1:
            raise UserError(f"{name}.batch_size is 1, but batch normalisation needs 2 or more")
        if isinstance(section, OrderingConfig):
            existing = math.factorial(section.parts) - (not config.permutations.include_identity)
            if section.permutations > existing:
                wanted = f"{name}.permutations is {section.permutations}"
                raise UserError(f"{wanted}, but {section.parts} parts have only {existing}")


def _check_data(config: Config) -> None:
    data = config.data
    frames = config.temporal.frames
    if "temporal" in config.task_names and 0 < data.clip_frames < frames:
        raise UserError(
            f"data.clip_frames is {data.clip_frames}, but must be 0 or at least temporal.frames, which is {frames}"
        )
    for medium in ("images", "videos"):
        training = getattr(config, medium)
        options = {medium: training}
        options |= {f"data.{use}_{medium}": getattr(data, f"{use}_{medium}") for use in ("val", "test")}
        for name, value in options.items():
            if value is not None and not addresses(value):
                raise UserError(f"{name} is an empty list: give a folder, or leave it out")
        given = [(name, address) for name, value in options.items() for address in addresses(value)]
        if given and training is None:
            raise UserError(f"{', '.join(dict(given))} would not be used: give --{medium} to train on too")
        for (name, address), (other, other_address) in itertools.combinations(given, 2):
            if _resolved(address) != _resolved(other_address):
                continue
            if name == other:
                raise UserError(f"{name} names {address} twice: leave one of them out")
            raise UserError(
                f"{name} and {other} are both {other_address}: what is trained on, X_val and the pretext test set "
                "must be different data"
            )


def addresses(value: Addresses | None) -> tuple[str, ...]:
    """Return all addresses of an option as text: none, one or several; from Python they may be paths."""
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple | list) else (str(value),)


def _resolved(address: str) -> str:
    """Return one spelling of a path; patterns of shards and remote addresses stay as they are."""
    return address if "{" in address or "://" in address else str(Path(address).expanduser().resolve())


# ---- short names, epochs and paths


SHORT_NAMES = {
    "iterations": ("optim.iterations", "Training steps in all."),
    "epochs": ("optim.epochs", "Passes over the training samples, instead of --iterations."),
    "batch_size": ("optim.batch_size", "Samples of each task in a step; tasks with their own change in proportion."),
    "lr": ("optim.backbone.lr", "Learning rate of the backbone; those of the heads change in proportion."),
    "backbone": ("model.backbone", "caffenet, alexnet, tiny, resnet18, resnet50, torchvision:NAME or timm:NAME."),
}
"""The options that are changed most: the field that each short name stands for, and its line of help."""


C = TypeVar("C", bound="Config")


def with_options(config: C, given: Mapping[str, Any]) -> C:
    """Return the config with the options that a user gives, sections as dicts, short names among them."""
    given = {name: dict(value) if isinstance(value, Mapping) else value for name, value in given.items()}
    known = {*type(config).__dataclass_fields__, *SHORT_NAMES}
    if not given.keys() <= {*known, *REGISTERED}:
        load_registered_tasks()
    for name in given.keys() - {*known, *REGISTERED}:
        raise UserError(f"unknown key {name}{did_you_mean(name, [*known, *REGISTERED])}")
    short = [name for name in SHORT_NAMES if name in given and name not in type(config).__dataclass_fields__]
    for name in short:
        value = given.pop(name)
        for field_name, field_value in _meant(name, value, config).items():
            _set_default(given, field_name.split("."), field_value)
    given = {**_foreign_backbone(config, given), **given}
    optim = given.get("optim")
    if isinstance(optim, dict):
        if "iterations" in optim and optim.setdefault("epochs", None) is not None:
            raise UserError("give iterations or epochs, not both")
        fixed = [f"optim.{name}" for name in ("warmup", "milestones") if name in optim]
        if fixed and optim.get("epochs", config.optim.epochs) is not None:
            raise UserError(f"{fixed[0]} counts iterations: give iterations with it instead of epochs, or leave it out")
    return merge_sections(config, given)


def merge_sections(config: C, values: Mapping[str, Any]) -> C:
    """Return the config with the given values, as `merge` does, those of registered tasks' sections among them."""
    given = dict(values)
    sections = given.pop("registered", {})
    if not isinstance(sections, Mapping):
        raise UserError("registered must hold the sections of tasks")
    if not {*sections, *given} <= {*Config.__dataclass_fields__, *REGISTERED}:
        load_registered_tasks()
    sections = {**sections, **{name: given.pop(name) for name in REGISTERED if name in given}}
    config = merge(config, given)
    registered = dict(config.registered)
    for name, changes in sections.items():
        if name not in REGISTERED:
            raise UnknownTaskError(f"there is no task {name}: import the module that registers it first")
        if not isinstance(changes, Mapping):
            raise UserError(f"{name} must hold keys and values")
        registered[name] = merge(config.section(name), dict(changes), f"{name}.")
    return replace(config, registered=registered)


def with_registered_sections(config: Config) -> Config:
    """Return the config with the sections of all registered tasks that it uses, so that it is complete."""
    used = {name: config.section(name) for name in config.task_names if name in REGISTERED}
    return replace(config, registered={**config.registered, **used})


def _foreign_backbone(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change of `init` that another backbone needs: the weights of a preset are those of its own."""
    model = given.get("model")
    backbone = model.get("backbone", config.model.backbone) if isinstance(model, Mapping) else config.model.backbone
    return {"init": None} if backbone != config.model.backbone and config.init == Path(PRETRAINED) else {}


def _meant(name: str, value: Any, config: Config) -> dict[str, Any]:
    """Return the fields that a short name stands for, with their values."""
    field_name, _ = SHORT_NAMES[name]
    if name == "batch_size":
        batch = typed(value, Count, name)
        own = {task: config.section(task).batch_size for task in TASK_SYMBOLS.values()}
        scaled = {task: round(size * batch / config.optim.batch_size) for task, size in own.items() if size}
        return {field_name: batch} | {f"{task}.batch_size": max(2, size) for task, size in scaled.items()}
    if name != "lr":
        return {field_name: value}
    lr = typed(value, Positive, name)
    ratio = {task: config.section(task).optimiser.lr / config.optim.backbone.lr for task in TASK_SYMBOLS.values()}
    return {field_name: lr} | {f"{task}.optimiser.lr": lr * factor for task, factor in ratio.items()}


def _set_default(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a value in nested dicts, unless it is there already: a full name counts more than a short one."""
    *sections, last = path
    for section in sections:
        values = values.setdefault(section, {})
    values.setdefault(last, value)


def with_epochs(config: Config, samples: Mapping[str, int], *, scale: bool = True) -> tuple[Config, list[str]]:
    """Return the config with the iterations that its epochs are with so many training samples of each task.

    Warm-up and milestones are scaled with them, if asked for. Also returns a sentence if there are epochs.
    """
    optim = config.optim
    if optim.epochs is None:
        return config, []
    largest = max(config.task_names, key=lambda name: (config.batch_size(name), samples[name]))
    batch, stages = config.batch_size(largest), len(config.stages)
    iterations = stages * max(1, math.ceil(optim.epochs * samples[largest] / batch - 1e-9))
    factor = iterations / optim.iterations if scale else 1.0
    changed = replace(
        optim,
        iterations=iterations,
        warmup=round(factor * optim.warmup),
        milestones=tuple(round(factor * milestone) for milestone in optim.milestones),
    )
    epochs, each = f"{optim.epochs:g} epoch{'' if optim.epochs == 1 else 's'}", " in each stage" if stages > 1 else ""
    sentence = (
        f"{epochs}{each} of {counted(samples[largest], 'training samples')} ({largest} task), in batches of {batch}, "
        f"are {counted(iterations, 'iterations')}"
    )
    return replace(config, optim=changed), [sentence]


def with_absolute_paths(config: Config) -> Config:
    """Return the config with absolute paths, so that it means the same in every working directory."""
    data = {
        name: _absolute(value) for name, value in vars(config.data).items() if name.endswith(("_images", "_videos"))
    }
    top = {name: _absolute(getattr(config, name)) for name in ("images", "videos", "out")}
    if str(config.init) != PRETRAINED and not str(config.init).startswith("hf:"):
        top["init"] = _absolute(config.init)
    for name in TASK_SYMBOLS.values():
        section = config.section(name)
        if isinstance(section, OrderingConfig) and name not in REGISTERED:
            top[name] = replace(section, permutation_file=_absolute(section.permutation_file))
    top["registered"] = {
        name: replace(section, permutation_file=_absolute(section.permutation_file))
        if isinstance(section, OrderingConfig)
        else section
        for name, section in config.registered.items()
    }
    gallery, queries = _absolute(config.monitor.gallery), _absolute(config.monitor.queries)
    return replace(
        config,
        data=replace(config.data, cache=_absolute(config.data.cache), **data),
        monitor=replace(config.monitor, gallery=gallery, queries=queries),
        **top,
    )


def _absolute(value: Any) -> Any:
    """Return an address or a path, or several, as an absolute one of the same type.

    Those in the home directory (~), of remote storage and of the synthetic world mean the same everywhere already.
    """
    if isinstance(value, tuple | list):
        return tuple(map(_absolute, value))
    if value is None or "://" in str(value) or str(value).startswith(("~", "synthetic:")):
        return value
    path = Path(value)
    path = path.resolve() if ".." in path.parts else path.absolute()
    return path if isinstance(value, Path) else str(path)


def _check_policy(policy: PolicyConfig, per_sample: int) -> None:
    if policy.batches > policy.interval:
        raise UserError(
            f"policy.interval is {policy.interval}, but must be at least policy.batches, which is {policy.batches}"
        )
    if policy.sampler != "reinforce" and policy.discount > 0:
        raise UserError(
            f"policy.discount is for policy.sampler reinforce, but policy.sampler is {policy.sampler}: set it to 0"
        )
    if policy.sampler in ("rollouts", "exp3") and policy.action == "batch":
        raise UserError(
            f"policy.sampler {policy.sampler} mixes a preferred group with all others: set policy.action to mixture"
        )
    if policy.sampler == "rollouts" and policy.entropy_weight == 0:
        raise UserError(
            "policy.sampler rollouts needs a policy.entropy_weight above 0: it divides the advantages by it"
        )
    if policy.sampler == "uniform" and policy.inverse:
        raise UserError(
            "policy.inverse needs a sampler with a preference, but policy.sampler is uniform: change one of the two"
        )
    if policy.grouping == "pairs" and policy.action == "batch":
        raise UserError("policy.grouping pairs groups the candidates of each sample: leave policy.action at mixture")
    if policy.grouping == "pairs" and policy.sampler != "uniform" and policy.prior_correction:
        raise UserError(
            "policy.prior_correction needs the probability of each permutation, which policy.grouping pairs does not "
            "define: switch policy.prior_correction off, or leave policy.grouping at permutations"
        )
    candidates = policy.candidates * per_sample
    if policy.grouping == "pairs" and policy.num_groups > candidates:
        raise UserError(
            f"policy.num_groups is {policy.num_groups}, but a sample has only policy.candidates times "
            f"permutations.per_sample, {candidates}, candidates"
        )


def read_config(path: Path) -> Config:
    """Read a config that a run or a person wrote; missing keys take the values of its preset."""
    values = read_yaml(path, "config")
    try:
        preset = preset_config(values.get("preset", "demo"))
        return merge_sections(preset, {**_foreign_backbone(preset, values), **values})
    except UnknownTaskError as error:
        raise UnknownTaskError(f"{path}: {error}") from None
    except UserError as error:
        hint = "; runs of older versions cannot be read: start a new one"
        raise UserError(f"{path}: {error}{hint if path.name == 'config.yaml' else ''}") from None
