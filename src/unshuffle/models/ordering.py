"""C: the ordering network, one backbone under a head for each task.

Axes: B samples, P parts of a sample, M permutations of a sample; the tasks are "spatial" and "temporal".
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from unshuffle.data.shuffle import permute
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

    def forward(
        self,
        crops: Mapping[str, Tensor],
        permutations: Mapping[str, Tensor],
        picks: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> dict[str, Tensor]:
        """Logits (B, M, |Ψ|) of each task after applying (B, M, P) permutations to its (B, P, ...) crops.

        A task's pick sees the logits of all its permutations, and returns the columns of those to go on with.
        """
        logits = {}
        for task, vectors in self.embed(crops).items():
            orders = permutations[task]
            if picks and task in picks:
                with torch.no_grad():
                    columns = picks[task](self._classify(task, vectors, orders))
                orders = orders.gather(1, columns[..., None].expand(-1, -1, orders.shape[2]))
            logits[task] = self._classify(task, vectors, orders)
        return logits

    def _classify(self, task: str, vectors: Tensor, orders: Tensor) -> Tensor:
        ordered = permute(vectors, orders)
        logits: Tensor = self.head(task).classify(ordered.flatten(0, 1)).unflatten(0, ordered.shape[:2])
        return logits
