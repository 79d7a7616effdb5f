from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unshuffle.config import Config, ModelConfig
from unshuffle.data.squares import WHOLE
from unshuffle.models import build_backbone
from unshuffle.tasks import TASKS, build_tasks
from unshuffle.tasks.base import Inputs, Network, SampleErrors, Task

NAMES = ("spatial", "temporal", "rotation", "instance")


def network(config: Config) -> Network:
    torch.manual_seed(0)
    return Network(build_backbone(config.model.backbone), build_tasks(config, NAMES))


def inputs(net: Network, batch: int = 2) -> dict[str, Inputs]:
    return {name: task_inputs(task, batch + number) for number, (name, task) in enumerate(net.tasks.items())}


def task_inputs(task: Task, batch: int) -> Inputs:
    generator = torch.Generator().manual_seed(len(task.name))
    side = task.settings.crop_size
    crops = torch.randn(batch, task.parts, 3, side, side, generator=generator)
    return Inputs(crops, task.targets(batch, generator, WHOLE))


def test_every_task_has_a_section_and_a_name() -> None:
    for name, kind in TASKS.items():
        task = kind(Config())
        assert task.name == name and task.settings is getattr(task.config, name)


def test_the_compiled_backbone_is_used_in_training_alone(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def compile_pass(function: Callable[[torch.Tensor], torch.Tensor], *, dynamic: bool) -> Any:
        def run(images: torch.Tensor) -> torch.Tensor:
            compiled.append(len(images))
            return function(images)

        assert not dynamic, "each size of crops has its own kernels"
        return run

    monkeypatch.setattr(torch, "compile", compile_pass)
    net, plain = network(config), network(config)
    net.compile_backbone()
    expected, outcomes = (each.train()(inputs(each)) for each in (plain, net))
    assert compiled and all(torch.equal(outcomes[name].loss, expected[name].loss) for name in NAMES)
    count = len(compiled)
    net.eval()(inputs(net))
    assert len(compiled) == count


def test_crops_of_one_size_share_a_backbone_pass(config: Config) -> None:
    net, passes = network(config).eval(), []
    net.backbone.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    net(inputs(net))
    assert passes == [2 * 4 + 3 * 3 + 4 * 4 + 5 * 2]


def test_crops_of_another_size_have_a_pass_of_their_own(config: Config) -> None:
    config = replace(config, rotation=replace(config.rotation, crop_size=40))
    net, passes = network(config).eval(), []
    net.backbone.register_forward_hook(lambda _, inputs, __: passes.append((len(inputs[0]), inputs[0].shape[-1])))
    outcomes = net(inputs(net))
    assert passes == [(2 * 4 + 3 * 3 + 5 * 2, 24), (4 * 4, 40)] and list(outcomes) == list(NAMES)


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


def assert_equal_validations(first: object, second: object) -> None:
    for (name, value), other in zip(vars(first).items(), vars(second).values(), strict=True):
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_validation_leaves_the_network_as_it_was(config: Config, name: str, training: bool) -> None:
    net = network(config).train(training)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    net.tasks[name].validate(net, [inputs(net)[name].crops])
    assert all(module.training == training for module in net.modules())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in net.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_training_mode_does_not_change_a_validation(config: Config, name: str) -> None:
    """Neither batch statistics nor dropout may take part."""
    dropout = replace(config.spatial.head, dropout=0.5)
    tasks = {task: replace(config.section(task), head=dropout) for task in ("spatial", "temporal")}
    net = network(replace(config, **tasks))  # type: ignore[arg-type]
    crops = inputs(net, 12)[name].crops
    training, not_training = (net.tasks[name].validate(net.train(mode), [crops]) for mode in (True, False))
    assert_equal_validations(training, not_training)


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
    assert [task.batch_size for task in build_tasks(own, NAMES).values()] == [4, 4, 6, 4]


def test_pictures_are_the_centre_crops_in_true_colours(config: Config) -> None:
    pixels = torch.randint(0, 256, (2, 1, 30, 30, 3), dtype=torch.uint8)
    config = replace(config, spatial=replace(config.spatial, tile_fraction=1.0))
    tiles = build_tasks(config, ["spatial"])["spatial"].pictures(pixels, 15)
    assert tiles.shape == (2, 4, 3, 15, 15)
    np.testing.assert_allclose(tiles[:, 3] * 255, pixels[:, 0, 15:, 15:].permute(0, 3, 1, 2), atol=1e-3)
