"""A part of a batch, for a process that trains beside others."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """One of several contiguous parts of a batch, as equal as they can be.

    All draws are made for the whole batch and then cut, so that they do not depend on how many share it.
    """

    index: int = 0
    of: int = 1

    def rows(self, total: int) -> slice:
        """Where this part lies among `total` rows."""
        return slice(total * self.index // self.of, total * (self.index + 1) // self.of)


WHOLE = Share()


def local_processes() -> int:
    """How many processes a launcher has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
