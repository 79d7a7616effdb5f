from pathlib import Path

import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.models import build_backbone
from unshuffle.models.caffenet import CaffeNet
from unshuffle.models.registry import IMAGENET, PER_IMAGE
from unshuffle.models.weights import save_backbone


def test_random_weights_are_those_of_the_seed() -> None:
    one, same, other = (find_backbone("random:tiny", seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(one["conv1.0.weight"], same["conv1.0.weight"])
    assert not torch.equal(one["conv1.0.weight"], other["conv1.0.weight"])
    backbone = find_backbone("random")
    assert isinstance(backbone, CaffeNet) and backbone.conv1[0].stride == (4, 4) and not backbone.training
    assert find_backbone("random:torchvision:resnet18").normalisation == PER_IMAGE


@pytest.mark.parametrize("name", ["backbone.safetensors", "mine.safetensors"])
def test_folders_and_files(name: str, tmp_path: Path) -> None:
    backbone = build_backbone("tiny").eval()
    save_backbone(backbone, "tiny", tmp_path / name, crop_size=24, permutations={})
    path = tmp_path if name.startswith("backbone") else tmp_path / name
    found = find_backbone(str(path))
    assert found.architecture == "tiny" and not found.training
    assert torch.equal(found.state_dict()["conv4.0.weight"], backbone.state_dict()["conv4.0.weight"])


def test_a_name_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"alexnet are not on this machine and nothing is downloaded.*random:alexnet"):
        find_backbone("alexnet")
    weights = build_backbone("alexnet").state_dict()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(weights, tmp_path / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth")
    for name in ("alexnet", "torchvision:alexnet"):
        found = find_backbone(name)
        assert torch.equal(found.state_dict()["features.0.weight"], weights["features.0.weight"])
        assert found.normalisation == IMAGENET and found.eval_size == 224


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "give --weights"),
        ("nowhere", "no weights at nowhere"),
        ("random:vgg", "no backbone 'vgg'"),
        ("torchvision:vgg11", "no backbone 'vgg11'"),
        ("resnet1", "no backbone 'resnet1'"),
    ],
)
def test_mistakes(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        find_backbone(spec)


def test_a_backbone_is_not_its_weights() -> None:
    with pytest.raises(UserError, match=r"caffenet has no weights of its own: .* random:caffenet"):
        find_backbone("caffenet")
    with pytest.raises(UserError, match="no weights at nowhere, and there is no backbone of that name"):
        find_backbone("nowhere")
