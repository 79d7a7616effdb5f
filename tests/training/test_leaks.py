"""Where the content shows no order, the network must stay at chance: nothing else may reveal the permutation."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unshuffle.data.source import Pixels
from unshuffle.data.synthetic import SyntheticSource
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.trainer import Tally, build_trainer


class TimelessSource(SyntheticSource):
    """Clips whose frames come in another order each time they are read."""

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        shuffled = np.random.default_rng([item, *frames]).permutation(frames)
        return super().read(item, shuffled.tolist())


def hidden_order(task: str, data: Data) -> Data:
    source = data.training[task].source
    assert isinstance(source, SyntheticSource)
    if task == "temporal":
        blind: SyntheticSource = TimelessSource(**vars(source))
    else:
        noise = np.random.default_rng(0).integers(0, 256, source.pixels.shape, dtype=np.uint8)
        blind = replace(source, pixels=noise)
    parts = (data.training[task], data.validation[task])
    training, validation = ({task: replace(samples, source=blind)} for samples in parts)
    return Data(training, validation)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "tasks"), [("spatial", "S"), ("temporal", "T")])
def test_no_order_is_found_where_there_is_none(small: Any, tmp_path: Path, task: str, tasks: str) -> None:
    head = {"fc6": 64, "hidden": 64, "dropout": 0.0}
    config = small(
        tmp_path / "run",
        tasks=tasks,
        data={"val_size": 40, "test_size": 0},
        synthetic={"images": 200, "clips": 200, "frame_size": 32},
        permutations={"per_sample": 5},
        augmentation={"gamma": 0.0},
        spatial={"crop_size": 24, "tile_fraction": 1.0, "head": head},
        temporal={"crop_size": 24, "head": head},
        optim={"batch_size": 16, "milestones": []},
    )
    errors = {}
    for name, data in {"seen": prepare(config), "hidden": hidden_order(task, prepare(config))}.items():
        trainer = build_trainer(config, data)
        for step in range(100):
            trainer.step({task: trainer.streams[task].batch(step)}, Tally())
        validation = trainer.validate(task)
        errors[name] = validation.error
    assert errors["hidden"] > validation.chance - 0.08  # 200 or 240 answers: three standard errors
    assert errors["seen"] < validation.chance - 0.3
