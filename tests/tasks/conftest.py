import pytest

from unshuffle.config import (
    AugmentationConfig,
    Config,
    HeadConfig,
    InstanceConfig,
    ModelConfig,
    OptimConfig,
    PermutationConfig,
    PolicyConfig,
    RotationConfig,
    SpatialConfig,
    TemporalConfig,
)


@pytest.fixture
def config() -> Config:
    """Small tasks: 2 x 2 tiles, 3 frames, crops of 24 px."""
    head = HeadConfig("concat", fc6=10, hidden=12)
    return Config(
        model=ModelConfig("tiny"),
        optim=OptimConfig(batch_size=4),
        spatial=SpatialConfig(crop_size=24, grid=2, permutations=6, head=head),
        temporal=TemporalConfig(crop_size=24, frames=3, permutations=5, head=head),
        rotation=RotationConfig(crop_size=24, hidden=12),
        instance=InstanceConfig(crop_size=24, hidden=12, output=6),
        permutations=PermutationConfig(per_sample=2),
        policy=PolicyConfig(sampler="uniform"),
        augmentation=AugmentationConfig(),
    )
