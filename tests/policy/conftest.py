import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

State = dict[str, Any]


@pytest.fixture
def saved_and_loaded() -> Callable[[State], State]:
    """What a checkpoint makes of a state."""

    def through_a_file(state: State) -> State:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        loaded: State = torch.load(file, weights_only=True)
        return loaded

    return through_a_file
