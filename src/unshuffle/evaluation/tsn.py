"""A single-frame Temporal Segment Network: each frame is classified by itself, the video by the mean of its logits."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.console import Advance
from unshuffle.data.batches import Prefetcher
from unshuffle.evaluation.clips import ClipBatch, Clips
from unshuffle.evaluation.video_crops import evaluation_crops, training_crops
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features


class ActionNetwork(nn.Module):
    """A backbone, and a new classifier of its pool5 map: fc6, fc7, classes."""

    def __init__(self, backbone: Backbone, classes: int, hidden: int, dropout: tuple[float, float]) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(
            nn.Linear(backbone_features(backbone, backbone.eval_size), hidden),
            nn.ReLU(),
            nn.Dropout(dropout[0]),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of each frame."""
        logits: Tensor = self.head(self.backbone(images).flatten(1))
        return logits


def consensus(logits: Tensor, segments: int) -> Tensor:
    """Logits of the videos: the mean over the frames of each, which follow one another."""
    return logits.view(-1, segments, logits.shape[1]).mean(dim=1)


def consensus_loss(network: ActionNetwork, batch: ClipBatch) -> Tensor:
    """Cross-entropy of the videos of a batch on the network's device."""
    images = training_crops(batch.cuts, batch.mirrored, network.backbone.eval_size, network.backbone.normalise)
    return F.cross_entropy(consensus(network(images), batch.segments), batch.labels)


@torch.no_grad()
def predict(
    network: ActionNetwork,
    clips: Clips,
    *,
    frames: int,
    crops: int,
    device: torch.device,
    workers: int,
    advance: Advance,
) -> Tensor:
    """Mean logits of each video over evenly spaced frames and their crops, (N, classes) on the CPU."""
    network.eval()
    logits = []
    for pixels in Prefetcher(lambda row: clips.evenly(row, frames), 0, len(clips), workers):
        images = evaluation_crops(pixels.to(device), network.backbone.eval_size, crops, network.backbone.normalise)
        logits.append(network(images).double().mean(dim=0).cpu())
        advance(len(logits))
    return torch.stack(logits)


def class_accuracies(predictions: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Percent of the videos of each class that are recognised."""
    hits = torch.bincount(labels[predictions == labels], minlength=classes)
    return 100 * hits.double() / torch.bincount(labels, minlength=classes)
