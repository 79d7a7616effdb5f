"""Synchronised and folded batch normalisation; several processes are in `tests/training/test_distributed.py`."""

import copy

import pytest
import torch
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models import Backbone, build_backbone
from unshuffle.models.batch_norm import SynchronisedBatchNorm2d, fold_batch_norm, synchronise

SIDE = {"caffenet": 127, "caffenet-lrn": 127, "alexnet": 127}


def with_statistics(name: str, seed: int = 0) -> Backbone:
    """A backbone with random running statistics, weights and biases in its batch normalisations."""
    torch.manual_seed(seed)
    backbone = build_backbone(name)
    for layer in backbone.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias)
            layer.running_mean = torch.randn_like(layer.weight.detach())
            layer.running_var = torch.rand_like(layer.weight.detach()) + 0.1
    return backbone


def batch(name: str) -> Tensor:
    side = SIDE.get(name, 64)
    return torch.randn(2, 3, side, side)


def norms(backbone: nn.Module) -> list[nn.Module]:
    return [layer for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)]


def test_synchronising_keeps_names_and_outputs_in_a_single_process() -> None:
    torch.manual_seed(0)
    plain = build_backbone("resnet18")
    with torch.no_grad():
        plain(torch.randn(4, 3, 32, 32))
    synchronised = copy.deepcopy(plain)
    synchronise(synchronised)
    layers = [layer for layer in synchronised.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(layers) == 20
    assert all(isinstance(layer, SynchronisedBatchNorm2d) for layer in layers)
    images = torch.randn(4, 3, 32, 32)
    for mode in (True, False):
        assert torch.equal(synchronised.train(mode)(images), plain.train(mode)(images))
    state = synchronised.state_dict()
    assert list(state) == list(plain.state_dict())
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("name", ["tiny", "caffenet", "resnet18", "resnet50"])
def test_folding_keeps_the_outputs(name: str) -> None:
    backbone, images = with_statistics(name).for_evaluation(), batch(name)
    folded = fold_batch_norm(backbone)
    assert norms(backbone) and not norms(folded) and type(folded) is type(backbone)
    with torch.no_grad():
        expected, actual = (
            backbone.stages(images) | {"map": backbone(images)},
            folded.stages(images) | {"map": folded(images)},
        )
    assert list(expected) == list(actual)
    for key in expected:
        assert float((expected[key] - actual[key]).abs().max()) <= 1e-5 * float(expected[key].abs().max()), key


def test_a_folded_convolution_against_the_formula() -> None:
    backbone = with_statistics("tiny").eval()
    conv, norm = backbone.get_submodule("conv2")[0], backbone.get_submodule("conv2")[1]  # type: ignore[index]
    fused = fold_batch_norm(backbone).get_submodule("conv2")[0]  # type: ignore[index]
    for channel in range(48):
        scale = norm.weight[channel] / (norm.running_var[channel] + norm.eps) ** 0.5
        torch.testing.assert_close(fused.weight[channel], conv.weight[channel] * scale)
        bias = (conv.bias[channel] - norm.running_mean[channel]) * scale + norm.bias[channel]
        torch.testing.assert_close(fused.bias[channel], bias)


@pytest.mark.parametrize("name", ["tiny", "resnet18"])
def test_a_folded_backbone_can_be_trained(name: str) -> None:
    folded = fold_batch_norm(with_statistics(name).train())
    assert folded.training
    folded.training_pass(batch(name)).square().mean().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in folded.parameters())
    fresh = fold_batch_norm(with_statistics(name, seed=1))
    fresh.load_state_dict(folded.state_dict())
    with torch.no_grad():
        images = batch(name)
        torch.testing.assert_close(fresh.eval()(images), folded.eval()(images))


def test_folding_leaves_the_original_unchanged() -> None:
    backbone = with_statistics("tiny").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    fold_batch_norm(backbone)
    assert backbone.training and norms(backbone)
    after = backbone.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ["caffenet-lrn", "alexnet"])
def test_a_backbone_without_batch_normalisation_is_copied(name: str) -> None:
    backbone, images = build_backbone(name).eval(), batch(name)
    folded = fold_batch_norm(backbone)
    assert folded is not backbone
    with torch.no_grad():
        assert torch.equal(folded(images), backbone(images))


def test_a_folded_backbone_does_not_use_the_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.models.caffenet.has_kernels", lambda device: True)
    folded = fold_batch_norm(with_statistics("caffenet")).bfloat16()
    images = torch.randn(1, 3, 75, 75).bfloat16()
    with torch.no_grad():
        assert torch.equal(folded.training_pass(images), folded(images))


def test_synchronised_batch_normalisations_can_be_folded() -> None:
    backbone, images = with_statistics("tiny"), batch("tiny")
    synchronise(backbone)
    backbone.eval()
    with torch.no_grad():
        torch.testing.assert_close(fold_batch_norm(backbone)(images), backbone(images), rtol=1e-4, atol=1e-4)


class NormalisesTwice(Backbone):
    """Applies its batch normalisation twice."""

    channels = 4
    eval_size = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        """Return the map normalised twice, which cannot be seen from the order of the layers."""
        mapped: Tensor = self.norm(self.norm(self.conv(images)))
        return mapped


def test_a_backbone_that_cannot_be_folded_raises() -> None:
    backbone = NormalisesTwice()
    nn.init.constant_(backbone.norm.weight, 3)
    with pytest.raises(UserError, match="cannot be folded"):
        fold_batch_norm(backbone)
    unfoldable = build_backbone("tiny")
    unfoldable.conv1 = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 32, 5, 2, 2))
    with pytest.raises(UserError, match="of tiny cannot be folded"):
        fold_batch_norm(unfoldable)
