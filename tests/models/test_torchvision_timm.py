import json
import urllib.request
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from unshuffle.errors import UserError
from unshuffle.models import Backbone, build_backbone, weights
from unshuffle.models.torchvision_timm import cached_weights
from unshuffle.models.weights import load_backbone


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give torch an empty cache and let every download fail; returns the folder of cached weights."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (tmp_path / "torch" / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "torch" / "hub" / "checkpoints"


def test_alexnet_equals_torchvisions() -> None:
    with torch.device("meta"):
        network = torchvision.models.alexnet(weights=None)
    backbone = build_backbone("alexnet").eval()
    shapes = {key: value.shape for key, value in network.state_dict().items() if key.startswith("features.")}
    assert {key: value.shape for key, value in backbone.state_dict().items()} == shapes
    network.features.to_empty(device="cpu").load_state_dict(backbone.get_submodule("features").state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        maps = backbone(images)
        assert maps.shape == (2, 256, 6, 6)
        assert torch.equal(maps, network.features(images))


@pytest.mark.parametrize("name", ["alexnet", "torchvision:alexnet", "resnet18"])
def test_nothing_is_downloaded(name: str) -> None:
    with pytest.raises(UserError, match=f"weights of {name} are not on this machine"):
        cached_weights(name)


def test_weights_from_torchvisions_cache(offline: Path) -> None:
    network = torchvision.models.resnet18(weights=None).eval()
    torch.save(network.state_dict(), offline / "resnet18-f37072fd.pth")
    images = torch.randn(1, 3, 64, 64)
    for name in ("resnet18", "torchvision:resnet18"):
        backbone = load_backbone(cached_weights(name), architecture=name)
        network.fc = torch.nn.Identity()
        with torch.no_grad():
            torch.testing.assert_close(backbone(images).flatten(1), network(images))
        assert backbone.normalisation.mean[0] == 0.485


def test_names_of_torchvision() -> None:
    assert build_backbone("torchvision:resnet34").channels == 512
    with pytest.raises(UserError, match="no backbone 'vgg16' that is supported"):
        build_backbone("torchvision:vgg16")
    with pytest.raises(UserError, match="no backbone 'resnet19'"):
        cached_weights("resnet19")


def test_a_name_without_its_family_is_understood() -> None:
    with pytest.raises(UserError, match=r"no backbone 'ResNet34' \(did you mean torchvision:resnet34\?\)"):
        build_backbone("ResNet34")
    pytest.importorskip("timm")
    with pytest.raises(UserError, match=r"did you mean timm:vit_tiny_patch16_224\?"):
        build_backbone("vit_tiny_patch16_224")


def test_a_timm_backbone() -> None:
    timm = pytest.importorskip("timm")
    backbone = build_backbone("timm:resnet10t").eval()
    assert backbone.architecture == "timm:resnet10t" and backbone.eval_size == 176
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        maps, stages = backbone(images), backbone.stages(images)
        torch.testing.assert_close(maps, stages["layer4"].mean(dim=(2, 3), keepdim=True))
    assert maps.shape == (2, backbone.channels, 1, 1)
    with pytest.raises(UserError, match="timm has no model 'nothing'"):
        build_backbone("timm:nothing")
    whole = timm.create_model("resnet10t", pretrained=False)
    assert set(backbone.forms()["torchvision"].state_dict()) < set(whole.state_dict())


def test_timm_weights_from_a_file_and_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="weights of timm:resnet10t are not on this machine"):
        cached_weights("timm:resnet10t")
    whole = timm.create_model("resnet10t", pretrained=False).eval()
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    backbone, images = load_backbone(tmp_path / "w.pth", "timm:resnet10t"), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(whole.fc(backbone(images).flatten(1)), whole(images))
    assert len(backbone.normalisation.mean) == len(backbone.normalisation.std) == 3
    repository = tmp_path / f"models--{timm.get_pretrained_cfg('resnet10t').hf_hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    save_file(whole.state_dict(), repository / "snapshots" / "abc" / "model.safetensors")
    cached = load_backbone(cached_weights("timm:resnet10t"), "timm:resnet10t")
    with torch.no_grad():
        assert torch.equal(cached(images), backbone(images))


def timm_file(name: str, file: Path) -> None:
    """Write a timm model with its classifier as timm and Hugging Face do, filled with zeros."""
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        state = timm.create_model(name, pretrained=False).state_dict()
    file.parent.mkdir(exist_ok=True)
    save_file({key: torch.zeros(value.shape, dtype=value.dtype) for key, value in state.items()}, file)


@pytest.mark.parametrize(
    "name", ["resnet10t", "swin_tiny_patch4_window7_224", "convnext_atto", "regnetx_002", "vit_small_patch32_224"]
)
def test_timms_common_networks_are_recognised(name: str, tmp_path: Path) -> None:
    timm_file(name, tmp_path / "model.safetensors")
    assert load_backbone(tmp_path / "model.safetensors").architecture == f"timm:{name}"


@pytest.mark.parametrize(
    ("name", "twin"),
    [("vit_tiny_patch16_224", "deit_tiny_patch16_224"), ("efficientnet_b0", "tf_efficientnet_b0")],
)
def test_networks_with_equal_names_and_shapes(name: str, twin: str, tmp_path: Path) -> None:
    timm_file(name, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=f"fits timm:{name} and timm:{twin} alike, which differ in normalisation"):
        load_backbone(tmp_path / "model.safetensors")
    assert load_backbone(tmp_path / "model.safetensors", f"timm:{twin}").architecture == f"timm:{twin}"
    (tmp_path / "model.safetensors").rename(tmp_path / f"{twin}-0a1b2c3d.safetensors")
    assert load_backbone(tmp_path / f"{twin}-0a1b2c3d.safetensors").architecture == f"timm:{twin}"


def test_the_config_that_timm_writes_beside_weights(tmp_path: Path) -> None:
    timm_file("vit_tiny_patch16_224", tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    backbone = load_backbone(tmp_path / "model.safetensors")
    assert backbone.architecture == "timm:vit_tiny_patch16_224" and backbone.normalisation.mean == (0.1, 0.2, 0.3)
    for content in ('{"architecture": 3}', '["resnet18"]', "{", '{"architecture": "unheard_of"}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UserError, match="alike"):
            load_backbone(tmp_path / "model.safetensors")


def test_a_repository_in_the_cache_of_hugging_face_says_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k" / "model.safetensors"
    timm_file("vit_tiny_patch16_224", file)
    assert load_backbone(file).architecture == "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def test_few_networks_are_built_to_recognise_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counted(name: str) -> Backbone:
        built.append(name)
        return build_backbone(name)

    monkeypatch.setattr(weights, "build_backbone", counted)
    timm_file("vit_small_patch32_224", tmp_path / "model.safetensors")
    load_backbone(tmp_path / "model.safetensors")
    assert 2 < len(built) < 50


def test_timm_backbones_without_timm_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'unshuffle\[timm\]'"):
        build_backbone("timm:resnet50d")
