from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from unshuffle.config import Config, ModelConfig
from unshuffle.models import build_backbone
from unshuffle.tasks import TASKS, build_tasks
from unshuffle.tasks.base import Inputs, Network, SampleErrors, Task

NAMES = ("spatial", "temporal", "rotation")


def network(config: Config, names=NAMES) -> Network:
    torch.manual_seed(0)
    return Network(build_backbone(config.model.backbone), build_tasks(config, names))


def inputs(net: Network, batch: int = 2) -> dict[str, Inputs]:
    return {name: task_inputs(task, batch + number) for number, (name, task) in enumerate(net.tasks.items())}


def task_inputs(task: Task, batch: int) -> Inputs:
    generator = torch.Generator().manual_seed(len(task.name))
    side = task.settings.crop_size
    crops = torch.randn(batch, task.parts, 3, side, side, generator=generator)
    return Inputs(crops, task.targets(batch, generator, slice_of_all()))


def slice_of_all():
    from unshuffle.data.squares import WHOLE

    return WHOLE


def test_every_task_has_a_section_and_a_name() -> None:
    for name, kind in TASKS.items():
        task = kind(Config())
        assert task.name == name and task.settings is getattr(task.config, name)


def test_crops_of_one_size_share_a_backbone_pass(config: Config) -> None:
    net, passes = network(config).eval(), []
    net.backbone.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    net(inputs(net))
    assert passes == [2 * 4 + 3 * 3 + 4 * 4]


def test_crops_of_another_size_have_a_pass_of_their_own(config: Config) -> None:
    config = replace(config, rotation=replace(config.rotation, crop_size=40))
    net, passes = network(config).eval(), []
    net.backbone.register_forward_hook(lambda _, inputs, __: passes.append((len(inputs[0]), inputs[0].shape[-1])))
    outcomes = net(inputs(net))
    assert passes == [(2 * 4 + 3 * 3, 24), (4 * 4, 40)] and list(outcomes) == list(NAMES)


@pytest.mark.parametrize("size", [24, 40])
@pytest.mark.parametrize("architecture", ["tiny", "resnet18"])
@torch.no_grad()
def test_tasks_in_one_step_equal_tasks_alone(config: Config, architecture: str, size: int) -> None:
    config = replace(config, model=ModelConfig(architecture), rotation=replace(config.rotation, crop_size=size))
    net = network(config).eval()
    batch = inputs(net)
    together = net(batch)
    for name in NAMES:
        alone = net({name: batch[name]})
        assert list(alone) == [name]
        np.testing.assert_allclose(together[name].loss, alone[name].loss, atol=1e-5)


def test_only_the_heads_of_the_given_tasks_get_gradients(config: Config) -> None:
    net = network(config)
    net({"temporal": inputs(net)["temporal"]})["temporal"].loss.backward()
    assert all(weight.grad is not None for weight in net.heads["temporal"].parameters())
    assert all(weight.grad is None for weight in net.heads["spatial"].parameters())
    assert any(weight.grad is not None and weight.grad.any() for weight in net.backbone.parameters())


def test_evaluation_mode_is_left_as_it_was(config: Config) -> None:
    net = network(config).train()
    with net.evaluation_mode():
        assert not net.training and not torch.is_grad_enabled()
    assert net.training and torch.is_grad_enabled()


def test_inputs_by_name_and_back() -> None:
    crops, labels = torch.rand(2, 3), torch.arange(2)
    tensors = Inputs(crops, {"permutations": labels}).tensors()
    assert list(tensors) == ["crops", "permutations"]
    again = Inputs.of(tensors)
    assert again.crops is crops and again.targets == {"permutations": labels}


def test_sample_errors() -> None:
    errors = SampleErrors(torch.tensor([0.0, 0.5, 1.0]), chance=0.75)
    assert errors.error == pytest.approx(0.5) and errors.is_finite
    assert not SampleErrors(torch.tensor([0.0, torch.nan]), chance=0.75).is_finite


def test_a_task_may_have_its_own_batch_size(config: Config) -> None:
    own = replace(config, rotation=replace(config.rotation, batch_size=6))
    assert [task.batch_size for task in build_tasks(own, NAMES).values()] == [4, 4, 6]


def pictures(task: Task, pixels: Tensor) -> Tensor:
    return task.pictures(pixels, 12)


def test_pictures_are_the_centre_crops_in_true_colours(config: Config) -> None:
    pixels = torch.randint(0, 256, (2, 1, 30, 30, 3), dtype=torch.uint8)
    config = replace(config, spatial=replace(config.spatial, tile_fraction=1.0))
    tiles = build_tasks(config, ["spatial"])["spatial"].pictures(pixels, 15)
    assert tiles.shape == (2, 4, 3, 15, 15)
    np.testing.assert_allclose(tiles[:, 3] * 255, pixels[:, 0, 15:, 15:].permute(0, 3, 1, 2), atol=1e-3)
