from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import Config, HeadConfig, ModelConfig, preset_config
from unshuffle.data.crops import permute
from unshuffle.data.squares import WHOLE, RankSlice, Squares
from unshuffle.data.synthetic import synthetic_clips, synthetic_images
from unshuffle.errors import UserError
from unshuffle.models import build_backbone
from unshuffle.permutations import permutation_set, save_permutations
from unshuffle.policy.groups import GroupSampler
from unshuffle.tasks import build_tasks
from unshuffle.tasks.base import Inputs, Network
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.spatial import SpatialTask
from unshuffle.tasks.temporal import TemporalTask

CROP = {"tiny": 24, "caffenet": 75, "resnet18": 32}


def with_architecture(config: Config, architecture: str, kind: str = "concat", centre: bool = True) -> Config:
    head = HeadConfig(kind, fc6=10, hidden=12, centre=centre)  # type: ignore[arg-type]
    return replace(
        config,
        model=ModelConfig(architecture),
        spatial=replace(config.spatial, crop_size=CROP[architecture], head=head),
        temporal=replace(config.temporal, crop_size=CROP[architecture], head=head),
    )


def network(config: Config, *names: str) -> Network:
    """In evaluation mode, with running statistics as after some training."""
    torch.manual_seed(0)
    backbone = build_backbone(config.model.backbone)
    with torch.no_grad():
        backbone.train()(torch.randn(4, 3, config.spatial.crop_size, config.spatial.crop_size))
    return Network(backbone, build_tasks(config, names or ("spatial", "temporal"))).eval()


def ordering(net: Network, name: str) -> OrderingTask:
    task = net.tasks[name]
    assert isinstance(task, OrderingTask)
    return task


def crops(task: OrderingTask, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(task.name))
    side = task.settings.crop_size
    return torch.randn(batch, task.parts, 3, side, side, generator=generator)


def logits(net: Network, name: str, parts: Tensor, labels: Tensor) -> Tensor:
    task, head = ordering(net, name), net.heads[name]
    return task._classify(head, head.embed(net.features({name: parts})[name]), labels)  # type: ignore[operator, arg-type]


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("kind", ["concat", "lstm"])
@pytest.mark.parametrize("architecture", CROP)
@torch.no_grad()
def test_permutations_on_one_backbone_pass_equal_separate_passes_of_permuted_crops(
    config: Config, architecture: str, kind: str, centre: bool
) -> None:
    config = replace(config, permutations=replace(config.permutations, include_identity=True))
    net = network(with_architecture(config, architecture, kind, centre), "spatial")
    task = ordering(net, "spatial")
    parts, labels = crops(task, 2), torch.tensor([[0, 3, 5], [4, 1, 1]])
    together = logits(net, "spatial", parts, labels)
    assert together.shape == (2, 3, 6)
    head = net.heads["spatial"]
    for sample in range(2):
        for number in range(3):
            psi = task.permutations[labels[sample, number]].tolist()
            shuffled = torch.stack([parts[sample, part] for part in psi])[None]
            features = net.features({"spatial": shuffled})["spatial"]
            alone = head.classify(head.embed(features))  # type: ignore[operator, union-attr]
            np.testing.assert_allclose(alone[0], together[sample, number], atol=1e-5)
    assert (together.amax(dim=(0, 1)) - together.amin(dim=(0, 1))).max() > 2e-4, "the order matters"


@pytest.mark.parametrize("architecture", ["tiny", "resnet18"])
@torch.no_grad()
def test_permuting_the_crops_equals_permuting_the_features(config: Config, architecture: str) -> None:
    net = network(with_architecture(config, architecture), "temporal")
    parts = crops(ordering(net, "temporal"), 3)
    psi = torch.tensor([[[1, 2, 0]], [[0, 2, 1]], [[2, 1, 0]]])
    before = net.features({"temporal": permute(parts, psi)[:, 0]})["temporal"]
    after = permute(net.features({"temporal": parts})["temporal"], psi)[:, 0]
    np.testing.assert_allclose(before, after, atol=1e-5)


def test_loss_and_accuracy_against_a_loop(config: Config) -> None:
    net = network(config, "spatial")
    task = ordering(net, "spatial")
    parts, labels = crops(task, 3), torch.tensor([[0, 3], [5, 2], [1, 1]])
    prior = torch.rand(6).log()
    outcome = net({"spatial": Inputs(parts, {"permutations": labels, "log_prior": prior})})["spatial"]
    losses, hits = [], []
    for sample in range(3):
        for number in range(2):
            row = logits(net, "spatial", parts[[sample]], labels[[sample], number][:, None])[0, 0]
            losses.append(-(row + prior).log_softmax(dim=0)[labels[sample, number]])
            hits.append(int(row.argmax()) == int(labels[sample, number]))
    assert outcome.loss.item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    assert float(outcome.accuracy) == pytest.approx(np.mean(hits))
    assert torch.equal(outcome.sampled["permutations"], labels)


# a selection among candidates


def selection(labels: Tensor, columns: Tensor) -> dict[str, Tensor]:
    """Targets with which only the given columns can be selected."""
    noise = torch.full(labels.shape, -100.0).scatter(1, columns, 100.0)
    return {"permutations": labels, "log_weights": torch.zeros(3), "noise": noise}


@pytest.mark.parametrize("kind", ["concat", "lstm"])
def test_only_what_is_selected_is_trained_on(config: Config, kind: str) -> None:
    config = with_architecture(config, "tiny", kind)
    labels = torch.tensor([[0, 1, 2, 3, 4], [5, 4, 3, 2, 1], [2, 0, 5, 1, 3]])
    columns = torch.tensor([[4, 0], [1, 2], [3, 1]])
    results = []
    for targets in (selection(labels, columns), {"permutations": labels.gather(1, columns)}):
        net = network(config, "spatial").train()
        outcome = net({"spatial": Inputs(crops(ordering(net, "spatial"), 3), targets)})["spatial"]
        outcome.loss.backward()
        gradients = {name: weight.grad for name, weight in net.named_parameters() if weight.grad is not None}
        results.append((outcome, gradients))
    (selected, gradients), (asked_for, expected) = results
    assert {tuple(sorted(row)) for row in selected.sampled["permutations"].tolist()} == {(0, 4), (3, 4), (0, 1)}
    torch.testing.assert_close(selected.loss, asked_for.loss)
    torch.testing.assert_close(gradients, expected)


def test_the_backbone_runs_once_for_all_candidates(config: Config) -> None:
    net, passes = network(config, "spatial"), []
    net.backbone.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    labels = torch.zeros(2, 5, dtype=torch.int64)
    net({"spatial": Inputs(crops(ordering(net, "spatial"), 2), selection(labels, labels[:, :2]))})
    assert passes == [2 * 4]


# permutation sets and samplers


def test_the_permutation_set_is_chosen_given_or_read(config: Config, tmp_path: Path) -> None:
    chosen = SpatialTask(config).permutations
    np.testing.assert_array_equal(chosen, permutation_set(4, 6, seed=0))
    given = permutation_set(4, 8, seed=5)
    assert torch.equal(SpatialTask(config, permutations=given).permutations, torch.from_numpy(given))
    save_permutations(tmp_path / "psi.npy", given)
    read = replace(config, spatial=replace(config.spatial, permutation_file=tmp_path / "psi.npy"))
    assert torch.equal(SpatialTask(read).permutations, torch.from_numpy(given))
    assert SpatialTask(read).chance == pytest.approx(7 / 8)


def test_a_permutation_file_must_fit(config: Config, tmp_path: Path) -> None:
    save_permutations(tmp_path / "psi.npy", permutation_set(5, 8))
    config = replace(config, spatial=replace(config.spatial, permutation_file=tmp_path / "psi.npy"))
    with pytest.raises(UserError, match=r"psi.npy is for 5 parts, but the spatial task has 4"):
        _ = SpatialTask(config).permutations


def test_more_groups_than_permutations(config: Config) -> None:
    config = replace(config, policy=replace(config.policy, sampler="reinforce", num_groups=7))
    with pytest.raises(UserError, match="num_groups is 7, but the spatial task has only 6 permutations"):
        _ = SpatialTask(config).permutations


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_processes_train_on_slices_of_one_proposal(config: Config, world_size: int) -> None:
    def targets(part: RankSlice) -> Tensor:
        return SpatialTask(config).targets(6, torch.Generator().manual_seed(3), part)["permutations"]

    slices = [targets(RankSlice(rank, world_size)) for rank in range(world_size)]
    assert torch.equal(torch.cat(slices), targets(WHOLE))


def test_recognise_undoes_what_was_learned(config: Config) -> None:
    net = network(config, "spatial")
    task = ordering(net, "spatial")
    parts, labels = crops(task, 4), torch.tensor([0, 5, 2, 3])
    expected = logits(net, "spatial", parts, labels[:, None])[:, 0].argmax(dim=1)
    assert torch.equal(task.recognise(net, parts, labels), expected)


def test_the_state_is_restored(config: Config) -> None:
    task, other = SpatialTask(config), SpatialTask(config)
    task.sampled.add(torch.tensor([[0, 3], [3, 5]]))
    task.sampled.reduce(lambda counts: counts)
    other.load_state_dict(task.state_dict())
    assert other.sampled.permutations.tolist() == [1, 0, 0, 2, 0, 1]


# a few samples must be learned


@pytest.mark.parametrize("kind", ["concat", "lstm"])
@pytest.mark.parametrize("name", ["spatial", "temporal"])
def test_sixteen_samples_are_memorised(config: Config, kind: str, name: str) -> None:
    head = HeadConfig(kind, fc6=64, hidden=128)  # type: ignore[arg-type]
    config = replace(
        config,
        spatial=replace(config.spatial, crop_size=16, grid=3, permutations=10, head=head),
        temporal=replace(config.temporal, crop_size=16, frames=5, permutations=10, head=head),
    )
    torch.manual_seed(0)
    task = build_tasks(config, [name])[name]
    world = synthetic_images(16, 72, seed=0) if name == "spatial" else synthetic_clips(16, 24, 5, seed=0)
    parts = task.crops(Squares.of(torch.from_numpy(world.pixels)))
    net = Network(build_backbone("tiny"), {name: task}).train()
    assert task.validate(net, [parts]).error > 0.7, "the labels do not leak"
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    labels = torch.arange(10).expand(16, -1)
    for _ in range(60):
        optimiser.zero_grad()
        outcome = net({name: Inputs(parts, {"permutations": labels})})[name]
        outcome.loss.backward()
        optimiser.step()
    assert outcome.accuracy == 1
    for module in net.modules():  # the running statistics lag behind sixty steps
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        net({name: Inputs(parts, {"permutations": labels})})
    assert task.validate(net, [parts]).error == 0


def test_the_loss_is_cross_entropy(config: Config) -> None:
    net = network(config, "temporal")
    task = ordering(net, "temporal")
    parts, labels = crops(task, 3), torch.tensor([[0, 3], [4, 2], [1, 1]])
    outcome = net({"temporal": Inputs(parts, {"permutations": labels})})["temporal"]
    expected = F.cross_entropy(logits(net, "temporal", parts, labels).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(outcome.loss, expected)


def test_the_sampler_compares_no_errors_across_a_change_of_the_learning_rate(config: Config) -> None:
    optim = replace(config.optim, iterations=10, milestones=(6,))
    staged = replace(config, tasks="S&T", optim=optim, policy=replace(config.policy, sampler="reinforce", num_groups=2))
    sampler = ordering(network(staged), "temporal").sampler
    assert isinstance(sampler, GroupSampler)
    changed = [not sampler.history.comparable(now, now + 1) for now in range(10)]
    assert [now for now in range(10) if changed[now]] == [3, 5, 8]


# ---- in another training loop


def test_a_shuffled_batch_holds_the_tiles_in_the_order_of_its_permutation() -> None:
    task = SpatialTask(preset_config("demo"))
    images = torch.zeros(5, 3, 96, 120, dtype=torch.uint8)
    for position in range(9):  # each tile has a gradient of its own, in its own channel order
        row, column = divmod(position, 3)
        ramp = torch.arange(32 * 32).view(32, 32) % (position + 2) * 20
        images[:, :, 32 * row : 32 * row + 32, 12 + 32 * column : 12 + 32 * column + 32] = ramp.byte()
    labels = torch.tensor([0, 3, 50, 99, 7])
    ordered, _ = task.shuffle(images, torch.zeros(5, dtype=torch.int64))
    inverse = task.permutations[0].argsort()
    tiles = ordered[:, inverse]  # as in the image
    shuffled, returned = task.shuffle(images, labels)
    assert torch.equal(returned, labels) and shuffled.shape == (5, 9, 3, 24, 24)
    for sample, label in enumerate(labels):
        assert torch.equal(shuffled[sample], tiles[sample, task.permutations[label]])
    floats, _ = task.shuffle(images / 255, labels)
    assert torch.equal(floats, shuffled)


def test_crops_of_a_shuffled_batch_are_random_with_a_generator() -> None:
    task, images = SpatialTask(preset_config("demo")), torch.rand(4, 3, 96, 96)
    labels = torch.arange(4)
    one, same, other = (task.shuffle(images, labels, torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    drawn = torch.cat([task.shuffle(images)[1] for _ in range(100)])
    assert len(drawn.unique()) > 80, "without labels every permutation is as likely"


def test_clips_are_shuffled_too_and_other_shapes_are_refused() -> None:
    task = TemporalTask(preset_config("demo"))
    clips, labels = task.shuffle(torch.rand(2, task.parts, 3, 32, 40))
    assert clips.shape == (2, task.parts, 3, 24, 24) and labels.shape == (2,)
    with pytest.raises(UserError, match=r"the temporal task shuffles \(B, 6, 3, H, W\) images, not \(2, 3, 32, 32\)"):
        task.shuffle(torch.rand(2, 3, 32, 32))
    with pytest.raises(UserError, match=r"the spatial task shuffles \(B, 3, H, W\) images, not \(2, 32, 32, 3\)"):
        SpatialTask(preset_config("demo")).shuffle(torch.rand(2, 32, 32, 3))
