import numpy as np
import pytest
import torch
from torch import Tensor

from unshuffle.config import HeadConfig
from unshuffle.data.shuffle import permute
from unshuffle.models import build_backbone
from unshuffle.models.heads import build_head
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.models.registry import backbone_features

CROP = {"tiny": 24, "caffenet": 75, "resnet18": 32}
PARTS = {"spatial": 4, "temporal": 3}
COUNT = {"spatial": 6, "temporal": 5}


def network(architecture: str, kind: str = "concat", centre: bool = True) -> OrderingNetwork:
    """In evaluation mode, with running statistics as after some training."""
    torch.manual_seed(0)
    backbone = build_backbone(architecture)
    with torch.no_grad():
        backbone.train()(torch.randn(4, 3, CROP[architecture], CROP[architecture]))
    features = backbone_features(backbone, CROP[architecture])
    config = HeadConfig(kind, fc6=10, hidden=12, centre=centre)  # type: ignore[arg-type]
    heads = {task: build_head(features, PARTS[task], COUNT[task], config) for task in PARTS}
    return OrderingNetwork(backbone, heads).eval()


def crops(task: str, batch: int, architecture: str) -> Tensor:
    generator = torch.Generator().manual_seed(len(task))
    return torch.randn(batch, PARTS[task], 3, CROP[architecture], CROP[architecture], generator=generator)


def permutations(task: str, batch: int, per_sample: int) -> Tensor:
    rng = np.random.default_rng(1)
    rows = rng.permuted(np.tile(np.arange(PARTS[task]), (batch, per_sample, 1)), axis=2)
    return torch.from_numpy(rows)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("kind", ["concat", "lstm"])
@pytest.mark.parametrize("architecture", CROP)
def test_permutations_on_one_backbone_pass_equal_separate_passes_of_permuted_crops(
    architecture: str, kind: str, centre: bool
) -> None:
    net = network(architecture, kind, centre)
    parts, psi = crops("spatial", 2, architecture), permutations("spatial", 2, 3)
    together = net({"spatial": parts}, {"spatial": psi})["spatial"]
    assert together.shape == (2, 3, COUNT["spatial"])
    identity = torch.arange(PARTS["spatial"])[None, None]
    for sample in range(2):
        for number in range(3):
            shuffled = torch.stack([parts[sample, part] for part in psi[sample, number].tolist()])
            alone = net({"spatial": shuffled[None]}, {"spatial": identity})["spatial"]
            np.testing.assert_allclose(alone[0, 0], together[sample, number], atol=1e-5)
    assert (together.amax(dim=(0, 1)) - together.amin(dim=(0, 1))).max() > 2e-4, "the order tells"


@pytest.mark.parametrize("architecture", ["tiny", "resnet18"])
def test_permuting_the_crops_equals_permuting_fc6(architecture: str) -> None:
    net = network(architecture)
    parts, psi = crops("temporal", 3, architecture), permutations("temporal", 3, 1)
    before = net.embed({"temporal": permute(parts, psi)[:, 0]})["temporal"]
    after = permute(net.embed({"temporal": parts})["temporal"], psi)[:, 0]
    np.testing.assert_allclose(before, after, atol=1e-5)


@pytest.mark.parametrize("order", [["spatial", "temporal"], ["temporal", "spatial"]])
@pytest.mark.parametrize("architecture", ["tiny", "caffenet"])
def test_both_tasks_in_one_pass_equal_separate_passes(architecture: str, order: list[str]) -> None:
    net = network(architecture)
    batch = {"spatial": 2, "temporal": 3}
    parts = {task: crops(task, batch[task], architecture) for task in order}
    psi = {task: permutations(task, batch[task], 2) for task in order}
    together = net(parts, psi)
    assert set(together) == set(order)
    for task in order:
        alone = net({task: parts[task]}, {task: psi[task]})
        assert set(alone) == {task}
        np.testing.assert_allclose(together[task], alone[task], atol=1e-5)


def test_the_backbone_runs_once_for_both_tasks() -> None:
    net, passes = network("tiny"), []
    net.backbone.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    batch = {"spatial": 2, "temporal": 3}
    parts = {task: crops(task, size, "tiny") for task, size in batch.items()}
    net(parts, {task: permutations(task, size, 7) for task, size in batch.items()})
    assert passes == [2 * PARTS["spatial"] + 3 * PARTS["temporal"]]


def test_only_the_heads_of_the_given_tasks_get_gradients() -> None:
    net = network("tiny")
    with torch.enable_grad():
        logits = net({"temporal": crops("temporal", 2, "tiny")}, {"temporal": permutations("temporal", 2, 2)})
        logits["temporal"].sum().backward()
    assert all(weight.grad is not None for weight in net.head("temporal").parameters())
    assert all(weight.grad is None for weight in net.head("spatial").parameters())
    assert any(weight.grad is not None and weight.grad.any() for weight in net.backbone.parameters())


# a choice among the permutations


class First:
    """Chooses columns that were decided before, and keeps the logits it was shown."""

    def __init__(self, columns: Tensor) -> None:
        self.columns = columns
        self.shown: Tensor | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        self.shown = logits
        return self.columns


@pytest.mark.parametrize("kind", ["concat", "lstm"])
def test_logits_of_what_is_picked_are_those_of_asking_for_it(kind: str) -> None:
    net, batch = network("tiny", kind), {"spatial": 4, "temporal": 3}
    parts = {task: crops(task, size, "tiny") for task, size in batch.items()}
    psi = {task: permutations(task, size, 5) for task, size in batch.items()}
    pick = First(torch.tensor([[4, 0], [1, 1], [2, 3], [0, 4]]))
    picked = net(parts, psi, {"spatial": pick})
    assert picked["spatial"].shape == (4, 2, COUNT["spatial"])
    all_of_them = net(parts, psi)
    assert pick.shown is not None
    np.testing.assert_allclose(pick.shown, all_of_them["spatial"], atol=1e-6)
    np.testing.assert_allclose(picked["temporal"], all_of_them["temporal"], atol=1e-6)
    orders = torch.stack([psi["spatial"][sample, columns] for sample, columns in enumerate(pick.columns)])
    asked_for = net(parts, {**psi, "spatial": orders})["spatial"]
    np.testing.assert_allclose(picked["spatial"], asked_for, atol=1e-6)
    for sample, columns in enumerate(pick.columns.tolist()):
        for place, column in enumerate(columns):
            expected = all_of_them["spatial"][sample, column]
            np.testing.assert_allclose(picked["spatial"][sample, place], expected, atol=1e-5)
    assert (all_of_them["spatial"].amax(dim=1) - all_of_them["spatial"].amin(dim=1)).max() > 1e-3, "they differ"


@pytest.mark.parametrize("kind", ["concat", "lstm"])
def test_no_gradient_comes_from_what_is_not_picked(kind: str) -> None:
    parts, psi = crops("spatial", 3, "tiny"), permutations("spatial", 3, 6)
    pick, gradients = First(torch.tensor([[5, 2], [0, 1], [3, 3]])), []
    orders = torch.stack([psi[sample, columns] for sample, columns in enumerate(pick.columns)])
    for wanted, picks in ((psi, {"spatial": pick}), (orders, None)):
        net = network("tiny", kind)
        with torch.enable_grad():
            net({"spatial": parts}, {"spatial": wanted}, picks)["spatial"].square().sum().backward()
        gradients.append({name: weight.grad for name, weight in net.named_parameters() if weight.grad is not None})
    assert pick.shown is not None and not pick.shown.requires_grad
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_backbone_runs_once_for_all_candidates() -> None:
    net, passes = network("tiny"), []
    net.backbone.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    pick = First(torch.zeros(2, 1, dtype=torch.int64))
    net({"spatial": crops("spatial", 2, "tiny")}, {"spatial": permutations("spatial", 2, 9)}, {"spatial": pick})
    assert passes == [2 * PARTS["spatial"]]
