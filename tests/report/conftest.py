"""Runs so small that every test can look at one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unshuffle.config import Config, demo
from unshuffle.options import merge
from unshuffle.pretraining import run_pretraining
from unshuffle.report.snapshot import Snapshot, hold_out
from unshuffle.runs.run import Run
from unshuffle.tasks.prepare import prepare
from unshuffle.training.trainer import build_trainer

HOSTILE = "<img src=x onerror=document.title='pwned'>&\"'"
"""A valid name of a file."""


def tiny_config(**changes: object) -> Config:
    config = demo()
    world = {
        "images": 30,
        "clips": 30,
        "image_size": 48,
        "frame_size": 24,
        "clip_frames": 8,
        "gallery": 48,
        "queries": 24,
    }
    return replace(
        config,
        device="cpu",
        data=replace(config.data, val_size=6, workers=1),
        synthetic=replace(config.synthetic, **world),
        spatial=replace(config.spatial, permutations=5),
        temporal=replace(config.temporal, permutations=5),
        rotation=replace(config.rotation, crop_size=24),
        instance=replace(config.instance, crop_size=24),
        permutations=replace(config.permutations, per_sample=2),
        optim=replace(config.optim, iterations=6, batch_size=4, warmup=0, milestones=()),
        # without size prior: 5 permutations never form 2 equal groups, so there is a preference from the start
        policy=replace(config.policy, num_groups=2, interval=2, batches=2, start_below=2.0, size_prior=False),
        log=replace(config.log, train_every=1),
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture(name="tiny_config")
def tiny_config_fixture() -> Callable[..., Config]:
    return tiny_config


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run on the synthetic world."""
    return run_pretraining(tiny_config(out=tmp_path_factory.mktemp("report") / "finished"))


@pytest.fixture(scope="session")
def uniform_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run without policy, on the spatial task alone."""
    config = tiny_config(out=tmp_path_factory.mktemp("report") / "uniform", tasks="S")
    return run_pretraining(replace(config, policy=replace(config.policy, sampler="uniform")))


@pytest.fixture(scope="session")
def rollout_run(tmp_path_factory: pytest.TempPathFactory, reliable: Any) -> Run:
    """A finished run whose policy learns from rollouts."""
    config = tiny_config(out=tmp_path_factory.mktemp("report") / "rollouts")
    with reliable():
        return run_pretraining(replace(config, policy=replace(config.policy, sampler="rollouts", rollout_iterations=2)))


@pytest.fixture(scope="session")
def pair_run(tmp_path_factory: pytest.TempPathFactory, reliable: Any) -> Run:
    """The same, with groups of pairs."""
    config = tiny_config(out=tmp_path_factory.mktemp("report") / "pairs")
    policy = replace(
        config.policy,
        sampler="rollouts",
        rollout_iterations=2,
        grouping="pairs",
        prior_correction=False,
        num_groups=5,
        candidates=3,
    )
    with reliable():
        return run_pretraining(replace(config, policy=policy))


@pytest.fixture(scope="session")
def all_tasks_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run on all three tasks."""
    return run_pretraining(tiny_config(out=tmp_path_factory.mktemp("report") / "all", tasks="S+T+R"))


@pytest.fixture(scope="session")
def rotation_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run without an ordering task."""
    return run_pretraining(tiny_config(out=tmp_path_factory.mktemp("report") / "rotation", tasks="R"))


@pytest.fixture(scope="session")
def instance_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with instance discrimination beside an ordering task."""
    return run_pretraining(tiny_config(out=tmp_path_factory.mktemp("report") / "instance", tasks="S+I"))


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run whose folder and images have names that look like HTML; one image cannot be read."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    images = folder / "images"
    images.mkdir()
    for number in range(12):
        pixels = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{HOSTILE}{number}.png")
    (images / f"{HOSTILE}.jpg").write_bytes(b"not an image")
    config = tiny_config(images=str(images), out=folder / HOSTILE)
    return run_pretraining(merge(config, {"data": {"cache": str(folder / "cache"), "max_bad_fraction": 0.5}}))


@pytest.fixture(scope="session")
def snapshot() -> Snapshot:
    """An untrained network."""
    config = tiny_config()
    torch.manual_seed(0)
    trainer = build_trainer(config, prepare(config))
    return Snapshot.of(trainer, hold_out(trainer))
