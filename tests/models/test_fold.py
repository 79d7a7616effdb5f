import pytest
import torch
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models import Backbone, build_backbone
from unshuffle.models.fold import fold_batch_norm
from unshuffle.models.norm import synchronise

SIDE = {"caffenet": 127, "caffenet-lrn": 127, "alexnet": 127}


def lived(name: str, seed: int = 0) -> Backbone:
    """A backbone whose normalisations have seen and learned something."""
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


@pytest.mark.parametrize("name", ["tiny", "caffenet", "resnet18", "resnet50"])
def test_the_folded_backbone_computes_the_same(name: str) -> None:
    backbone, images = lived(name).for_evaluation(), batch(name)
    folded = fold_batch_norm(backbone)
    assert norms(backbone) and not norms(folded) and type(folded) is type(backbone)
    with torch.no_grad():
        one, other = (
            backbone.stages(images) | {"map": backbone(images)},
            folded.stages(images) | {"map": folded(images)},
        )
    assert list(one) == list(other)
    for key in one:
        assert float((one[key] - other[key]).abs().max()) <= 1e-5 * float(one[key].abs().max()), key


def test_one_convolution_by_hand() -> None:
    backbone = lived("tiny").eval()
    conv, norm = backbone.get_submodule("conv2")[0], backbone.get_submodule("conv2")[1]  # type: ignore[index]
    fused = fold_batch_norm(backbone).get_submodule("conv2")[0]  # type: ignore[index]
    for channel in range(48):
        scale = norm.weight[channel] / (norm.running_var[channel] + norm.eps) ** 0.5
        torch.testing.assert_close(fused.weight[channel], conv.weight[channel] * scale)
        bias = (conv.bias[channel] - norm.running_mean[channel]) * scale + norm.bias[channel]
        torch.testing.assert_close(fused.bias[channel], bias)


@pytest.mark.parametrize("name", ["tiny", "resnet18"])
def test_the_folded_backbone_can_be_trained(name: str) -> None:
    folded = fold_batch_norm(lived(name).train())
    assert folded.training
    folded.training_pass(batch(name)).square().mean().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in folded.parameters())
    fresh = fold_batch_norm(lived(name, seed=1))
    fresh.load_state_dict(folded.state_dict())
    with torch.no_grad():
        images = batch(name)
        torch.testing.assert_close(fresh.eval()(images), folded.eval()(images))


def test_the_backbone_itself_is_left_alone() -> None:
    backbone = lived("tiny").train()
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


def test_the_fused_kernels_leave_a_folded_backbone_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.models.caffenet.has_kernels", lambda device: True)
    folded = fold_batch_norm(lived("caffenet")).bfloat16()
    images = torch.randn(1, 3, 75, 75).bfloat16()
    with torch.no_grad():
        assert torch.equal(folded.training_pass(images), folded(images))


def test_synchronised_normalisations_fold_too() -> None:
    backbone, images = lived("tiny"), batch("tiny")
    synchronise(backbone)
    backbone.eval()
    with torch.no_grad():
        torch.testing.assert_close(fold_batch_norm(backbone)(images), backbone(images), rtol=1e-4, atol=1e-4)


class Before(Backbone):
    """Normalises before it convolves."""

    channels = 4
    eval_size = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        """Twice the normalisation, which the order of the layers does not tell."""
        mapped: Tensor = self.norm(self.norm(self.conv(images)))
        return mapped


def test_what_cannot_be_folded_is_refused() -> None:
    backbone = Before()
    nn.init.constant_(backbone.norm.weight, 3)
    with pytest.raises(UserError, match="cannot be folded"):
        fold_batch_norm(backbone)
    lone = build_backbone("tiny")
    lone.conv1 = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 32, 5, 2, 2))
    with pytest.raises(UserError, match="of tiny cannot be folded"):
        fold_batch_norm(lone)
