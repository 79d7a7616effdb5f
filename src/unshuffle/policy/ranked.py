"""Fixed preferences for hard or for easy groups, as controls of the policy."""

import torch
from torch import Tensor

from unshuffle.policy.groups import Groups, GroupSampler


class Ranked(GroupSampler):
    """Samples the hardest group half of the time, the next a quarter, and so on; or the easiest first."""

    def probabilities(self, groups: Groups) -> Tensor:
        """Return a fixed preference by rank among the groups that have members."""
        present = int((groups.sizes > 0).sum())
        weights = 0.5 ** torch.arange(present)
        ranked = torch.zeros_like(groups.sizes)
        ranked[:present] = weights if self.config.sampler == "hard-first" else weights.flip(0)
        return ranked / ranked.sum()
