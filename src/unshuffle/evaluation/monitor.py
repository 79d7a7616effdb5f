"""What a run measures of its features while it trains: on its own held-out samples, and on labelled images if given.

Nothing in the training depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.config import Config, ViewConfig
from unshuffle.data.batches import Samples
from unshuffle.data.dataset import LabelledImages, Square, load_images, synthetic_dataset
from unshuffle.data.source import Pixels
from unshuffle.data.synthetic import synthetic_images
from unshuffle.data.views import VIEWS, ViewPlan, view_uniforms
from unshuffle.evaluation.features import colour_histograms, extract, open_pair, raw_pixels
from unshuffle.evaluation.index import nearest
from unshuffle.evaluation.protocol import note_skipped
from unshuffle.evaluation.rankme import effective_rank
from unshuffle.evaluation.retrieval import TOP, top_k_accuracy
from unshuffle.models import Backbone, build_backbone
from unshuffle.randomness import stream_seed, torch_generator
from unshuffle.tasks.prepare import Data

CPU = torch.device("cpu")  # renders the views, so that every device sees the same ones
OWN_SAMPLES = 100  # of X_val at most
ROUNDS = 2  # pairs of views of each sample: 400 queries, whose standard error is at most 2.5 percentage points
OWN_VIEWS = ViewConfig(
    scale=(0.3, 0.6),
    hflip=0.0,
    jitter=1.0,
    brightness=0.4,
    contrast=0.4,
    saturation=0.0,
    hue=0.0,
    grayscale=1.0,
    blur=0.0,
)
"""Crops that overlap in part, in grayscale and of another brightness: neither colours nor the same pixels at the same
place give the partner away. Flips are left out, as tasks that learn places need not ignore them."""
CHUNK = 16  # samples whose views are rendered together


# ---- labelled images


@dataclass(frozen=True)
class RetrievalMonitor:
    """Retrieval and effective rank on a small labelled set, measured during pretraining."""

    gallery: LabelledImages
    queries: LabelledImages
    device: torch.device

    def neighbours(self, backbone: Backbone) -> Tensor:
        """Return the indices of each query's nearest gallery images."""
        return self._nearest(*self._features(backbone))

    def __call__(self, backbone: Backbone) -> dict[str, float]:
        """Return the top-k accuracies of a backbone, and the effective rank of its features of the gallery."""
        queries, gallery = self._features(backbone)
        rank = effective_rank(gallery.to(self.device))
        scores = self._score(self._nearest(queries, gallery))
        return {**scores, "chance": self.chance, "queries": len(self.queries), "rankme": rank}

    @property
    def chance(self) -> float:
        """Top-1 accuracy [%] of a random image of the gallery."""
        fractions = torch.bincount(self.gallery.labels, minlength=len(self.queries.classes)) / len(self.gallery)
        return 100 * float(fractions[self.queries.labels].mean())

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the accuracies of features that are not learned."""
        features = {"raw pixels": raw_pixels, "colour histograms": colour_histograms}
        return {
            name: self._score(self._nearest(feature(self.queries.pixels), feature(self.gallery.pixels)))
            for name, feature in features.items()
        }

    def _features(self, backbone: Backbone) -> tuple[Tensor, Tensor]:
        queries, gallery = (extract(backbone, side.pixels, self.device) for side in (self.queries, self.gallery))
        return queries, gallery

    def _nearest(self, queries: Tensor, gallery: Tensor) -> Tensor:
        return nearest(queries, gallery, min(max(TOP), len(self.gallery)))

    def _score(self, neighbours: Tensor) -> dict[str, float]:
        return top_k_accuracy(neighbours, self.queries.labels, self.gallery.labels)


def build_retrieval_monitor(config: Config, console: Console | None = None) -> RetrievalMonitor | None:
    """Return retrieval on the given labelled data, or on the synthetic world if that is trained on, or None.

    Files that cannot be read are named on the console.
    """
    device, monitor = choose_device(config.device), config.monitor
    if monitor.gallery is not None and monitor.queries is not None:
        square, cache = Square(build_backbone(config.model.backbone).eval_size), config.data.cache
        datasets = open_pair(monitor.gallery, monitor.queries, square=square, frames=1, cache=cache)
        gallery, queries = (load_images(dataset, monitor.limit) for dataset in datasets)
        if console is not None:
            for dataset in datasets:
                note_skipped(console, dataset, f"monitor, {dataset.address}", cache=cache)
        return RetrievalMonitor(gallery, queries, device)
    if config.images is not None or config.videos is not None:
        return None

    def synthetic(name: str, count: int) -> LabelledImages:
        seed = int(stream_seed(config.seed, "monitor", name).generate_state(1)[0])
        return load_images(synthetic_dataset(synthetic_images(count, config.synthetic.image_size, seed)))

    gallery, queries = synthetic("gallery", config.synthetic.gallery), synthetic("queries", config.synthetic.queries)
    return RetrievalMonitor(gallery, queries, device)


# ---- the run's own data, without labels


@dataclass(frozen=True)
class OwnData:
    """Held-out samples of the run: the effective rank of their features, and whether two views find each other.

    The views are chosen once, by the seed, so that every measurement of a run has the same ones.
    """

    images: Pixels
    """(N, side, side, 3), for the effective rank."""
    views: Mapping[str, Sequence[Pixels]]
    """ROUNDS times (2 N, side, side, 3) by name; the two views of a sample follow one another. crops: of an image;
    frames: of the first and the last frame of a clip."""
    device: torch.device

    def __call__(self, backbone: Backbone) -> dict[str, float]:
        """Return the effective rank, and the percentage of the views whose nearest is their partner, beside chance."""
        figures = {}
        for name, rounds in self.views.items():
            found = [partners_found(extract(backbone, pixels, self.device)) for pixels in rounds]
            figures[f"{name}_top1"] = sum(found) / len(found)
            figures[f"{name}_chance"] = 100 / (len(rounds[0]) - 1)
            figures[f"{name}_queries"] = sum(map(len, rounds))
        features = extract(backbone, self.images, self.device)
        return {**figures, "own_rankme": effective_rank(features.to(self.device))}


def partners_found(features: Tensor) -> float:
    """Return the percentage of (2 N, D) vectors whose nearest by cosine is their partner: 0 and 1, 2 and 3, …"""
    unit = F.normalize(features, dim=1)
    similarities = (unit @ unit.T).fill_diagonal_(-torch.inf)
    partners = torch.arange(len(unit)) ^ 1
    return 100 * float((similarities.argmax(dim=1) == partners).double().mean())


def build_own_data(data: Data, seed: int, device: torch.device) -> OwnData | None:
    """Return some of the validation samples with their views; None if there are fewer than two."""
    images = next((samples for samples in data.validation.values() if samples.frames == 1), None)
    clips = next((samples for samples in data.validation.values() if samples.frames > 1), None)
    chosen = [("crops", images or clips, 1), ("frames", clips, VIEWS)]
    squares = {name: _read(samples, frames) for name, samples, frames in chosen if samples and len(samples) > 1}
    if not squares:
        return None
    views = {
        name: [_render_views(pixels, torch_generator(CPU, seed, "own data", name, number)) for number in range(ROUNDS)]
        for name, pixels in squares.items()
    }
    return OwnData(next(iter(squares.values()))[:, 0].numpy(), views, device)


def _read(samples: Samples, frames: int) -> Tensor:
    """Return (N, frames, side, side, 3) bytes of evenly spaced samples: the centre squares of the whole short side."""
    positions = np.linspace(0, len(samples) - 1, min(OWN_SAMPLES, len(samples))).round().astype(int)
    side = min(samples.source.size(0))
    return replace(samples, items=samples.items[positions], frames=frames, side=side).centres()


def _render_views(pixels: Tensor, generator: torch.Generator) -> Pixels:
    """Return two random views of each of (N, 1 or 2, side, side, 3) samples as bytes of the same size."""
    uniforms = view_uniforms(len(pixels) * VIEWS, CPU, generator)
    assert uniforms is not None
    chunks = []
    for squares, numbers in zip(pixels.split(CHUNK), uniforms.split(CHUNK * VIEWS), strict=True):
        plan = ViewPlan(len(numbers), OWN_VIEWS, numbers)
        chunks.append(plan.crop(squares.flatten(0, 1), pixels.shape[2]).clamp(0, 1).mul(255).round().to(torch.uint8))
    views: Pixels = torch.cat(chunks).permute(0, 2, 3, 1).contiguous().numpy()
    return views


# ---- both


@dataclass(frozen=True)
class FeatureMonitor:
    """Everything that a run measures of its features; a `monitor` line of metrics.jsonl."""

    own: OwnData | None = None
    retrieval: RetrievalMonitor | None = None

    def __call__(self, backbone: Backbone) -> dict[str, float]:
        """Return all figures of a backbone by name."""
        monitors = [monitor for monitor in (self.retrieval, self.own) if monitor is not None]
        return {name: figure for monitor in monitors for name, figure in monitor(backbone).items()}


def build_monitor(config: Config, data: Data, console: Console | None = None) -> FeatureMonitor:
    """Return the monitor of a run; what it measures changes nothing in the training."""
    own = build_own_data(data, config.seed, choose_device(config.device))
    return FeatureMonitor(own, build_retrieval_monitor(config, console))
