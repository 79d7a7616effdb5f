"""Counts of the steps that were skipped because their loss or gradients were not finite, and when to stop."""

from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

MAX_SKIPPED_FRACTION = 0.1
"""Fraction of all steps that may be skipped in the long run."""


@dataclass
class SkippedSteps:
    """The skipped steps of a run; those of rollouts, which are undone, do not count."""

    total: int = 0
    in_a_row: int = 0
    """Skipped steps since the last one that was not."""
    longest: int = 0
    """Most of them in a row since the last check."""
    unlogged: list[int] = field(default_factory=list)
    """Iterations of those that no log entry names yet."""
    last: int = 0
    """Iteration of the last one."""

    def count(self, flags: MutableMapping[int, Tensor]) -> None:
        """Count the steps of some iterations by whether each was skipped, and remove them; waits for the device."""
        skipped = torch.stack(list(flags.values())).tolist() if flags else []
        for iteration, is_skipped in zip(flags, skipped, strict=True):
            self.in_a_row = self.in_a_row + 1 if is_skipped else 0
            self.longest = max(self.longest, self.in_a_row)
            if is_skipped:
                self.total, self.last = self.total + 1, iteration
                self.unlogged.append(iteration)
        flags.clear()

    def excess(self, limit: int, iterations: int) -> str | None:
        """Return which steps of so many were too many to skip, as the beginning of a sentence; None if none were.

        There may be `limit` of them, in a row or more often than the allowed fraction.
        """
        if self.longest > limit:
            return f"{self.longest} steps in a row were" if self.longest > 1 else "a step was"
        if self.total > limit and self.total > MAX_SKIPPED_FRACTION * iterations:
            return f"{self.total} of {iterations} steps were"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return all counts."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        vars(self).update(asdict(SkippedSteps(**state)))
