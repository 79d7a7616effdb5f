"""C: the ordering network, one backbone under a head for each task.

Axes: B samples, P parts of a sample, M permutations of a sample; the tasks are "spatial" and "temporal".
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unshuffle.data.media import explain
from unshuffle.data.shuffle import permute
from unshuffle.errors import UserError
from unshuffle.models.heads import Head
from unshuffle.models.registry import Backbone


class OrderingNetwork(nn.Module):
    """Recognises which permutation was applied to the parts of a sample."""

    def __init__(self, backbone: Backbone, heads: Mapping[str, Head]) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleDict(heads)

    def head(self, task: str) -> Head:
        """The head of a task."""
        head = self.heads[task]
        assert isinstance(head, Head)
        return head

    def embed(self, crops: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """fc6 of every part: (B, P, 3, S, S) crops of each task to (B, P, fc6), tiles and frames in one backbone pass."""
        sizes = {task: parts.shape[:2] for task, parts in crops.items()}
        images = torch.cat([parts.flatten(0, 1) for parts in crops.values()])
        maps = self.backbone.training_pass(images) if self.training else self.backbone(images)
        features = maps.flatten(1).split([batch * parts for batch, parts in sizes.values()])
        return {
            task: self.head(task).embed(rows.unflatten(0, size))
            for (task, size), rows in zip(sizes.items(), features, strict=True)
        }

    def forward(self, crops: Mapping[str, Tensor], permutations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits (B, M, |Ψ|) of each task after applying (B, M, P) permutations to its (B, P, ...) crops."""
        return {task: self.classify(task, features, permutations[task]) for task, features in self.embed(crops).items()}

    def classify(self, task: str, features: Tensor, permutations: Tensor) -> Tensor:
        """Logits (B, M, |Ψ|) of a task after applying (B, M, P) permutations to its (B, P, fc6) features."""
        permuted = permute(features, permutations)
        logits: Tensor = self.head(task).classify(permuted.flatten(0, 1)).unflatten(0, permuted.shape[:2])
        return logits


@torch.no_grad()
def backbone_features(backbone: Backbone, side: int, option: str = "size") -> int:
    """Length of the backbone's flattened output for one square image; `option` is what the side was given by."""
    was_training = backbone.training
    backbone.eval()  # a probe must not touch BN's running statistics
    try:
        features: Tensor = backbone(torch.zeros(1, 3, side, side, device=next(backbone.parameters()).device))
    except (RuntimeError, AssertionError) as error:  # timm asserts
        problem = explain(error).splitlines()[0]
        raise UserError(f"{option} {side} does not suit this backbone: {problem}") from None
    backbone.train(was_training)
    return features.numel()
