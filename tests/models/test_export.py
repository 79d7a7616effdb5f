from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from unshuffle.errors import UserError
from unshuffle.models import BACKBONES, Backbone, build_backbone
from unshuffle.models import export as exporting
from unshuffle.models.export import Format, default_file, export
from unshuffle.models.registry import PER_IMAGE
from unshuffle.models.weights import load_backbone, read_weights, save_backbone


def trained(name: str, folder: Path) -> Backbone:
    """A backbone with running statistics as after training, saved and loaded again."""
    backbone = build_backbone(name)
    with torch.no_grad():
        backbone.train()(torch.randn(2, 3, 96, 96) + 1)
    file = folder / "trained.safetensors"
    save_backbone(backbone, file, crop_sizes={"spatial": 24}, permutations={"spatial": np.array([[1, 0]])})
    return load_backbone(file)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("form", ["safetensors", "torchvision"])
@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"resnet50"}))
def test_an_export_loads_as_the_same_backbone(name: str, form: Format, fold: bool, tmp_path: Path) -> None:
    backbone = trained(name, tmp_path)
    out = tmp_path / f"w{exporting.SUFFIXES[form]}"
    export(backbone, out, form, fold=fold)
    loaded = load_backbone(out)
    assert type(loaded) is type(backbone) and loaded.normalisation == PER_IMAGE, (
        "not ImageNet's, although the names are torchvision's"
    )
    assert loaded.metadata["spatial_permutations"] == "[[1, 0]]"
    images = torch.randn(1, 3, 127, 127)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), backbone(images), rtol=1e-4, atol=1e-5)
    has_norm = any(isinstance(layer, nn.BatchNorm2d) for layer in loaded.modules())
    assert has_norm == (not fold and name not in ("alexnet", "caffenet-lrn"))
    assert loaded.metadata.get("batch_norm") == ("folded" if fold else None)


def docs_caffenet() -> nn.Sequential:
    """The module of docs/how-to/weights.md."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, stride=4), nn.BatchNorm2d(96), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.BatchNorm2d(256), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1), nn.BatchNorm2d(384), nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.BatchNorm2d(384), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.BatchNorm2d(256), nn.ReLU(), nn.MaxPool2d(3, 2),
    )  # fmt: skip


@pytest.mark.parametrize("fold", [False, True])
def test_a_plain_module_loads_an_exported_caffenet(fold: bool, tmp_path: Path) -> None:
    backbone = trained("caffenet", tmp_path)
    export(backbone, tmp_path / "w.pth", "torchvision", fold=fold)
    layers = [layer for layer in docs_caffenet() if not (fold and isinstance(layer, nn.BatchNorm2d))]
    module = nn.Sequential(OrderedDict(features=nn.Sequential(*layers))).eval()
    module.load_state_dict(torch.load(tmp_path / "w.pth", weights_only=True), strict=True)
    images = torch.randn(1, 3, 227, 227)
    with torch.no_grad():
        torch.testing.assert_close(module(images), backbone(images), rtol=1e-4, atol=1e-5)


def test_folded_caffenet_has_the_names_of_torchvisions_alexnet(tmp_path: Path) -> None:
    export(build_backbone("caffenet"), tmp_path / "w.pth", "torchvision", fold=True)
    assert list(torch.load(tmp_path / "w.pth", weights_only=True)) == list(build_backbone("alexnet").state_dict())


def test_torchvisions_resnet_loads_an_exported_resnet(tmp_path: Path) -> None:
    backbone = trained("resnet18", tmp_path)
    export(backbone, tmp_path / "w.pth", "torchvision")
    network = torchvision.models.resnet18(weights=None).eval()
    mismatch = network.load_state_dict(torch.load(tmp_path / "w.pth", weights_only=True), strict=False)
    assert not mismatch.unexpected_keys and mismatch.missing_keys == ["fc.weight", "fc.bias"]
    network.fc = nn.Identity()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(network(images), backbone(images).flatten(1))


@pytest.mark.parametrize("name", ["tiny", "caffenet-lrn"])
def test_onnx_computes_the_same_as_torch(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    backbone = trained(name, tmp_path)
    description = export(backbone, tmp_path / "w.onnx", "onnx", fold=name == "tiny")
    assert description["difference"] < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trained.safetensors", "w.onnx"], (
        "everything is in one file"
    )
    session = onnxruntime.InferenceSession(str(tmp_path / "w.onnx"), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["architecture"] == name and metadata["normalisation"] == PER_IMAGE.to_json()
    for count in (1, 4):
        images = torch.randn(count, 3, backbone.eval_size, backbone.eval_size)
        with torch.no_grad():
            (exported,) = session.run(["features"], {"images": images.numpy()})
            np.testing.assert_allclose(exported, backbone(images), rtol=1e-3, atol=1e-4)


def test_an_onnx_file_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    backbone = build_backbone("tiny").for_evaluation()
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    with pytest.raises(UserError, match="onnxruntime and torch differ by"):
        export(backbone, tmp_path / "w.onnx", "onnx")
    assert not list(tmp_path.iterdir())


def test_onnx_difference_detects_changed_weights(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    backbone = build_backbone("tiny").for_evaluation()
    export(backbone, tmp_path / "w.onnx", "onnx")
    with torch.no_grad():
        backbone.get_submodule("conv4")[0].bias[0] += 1  # type: ignore[index]
    assert exporting.onnx_difference(backbone, tmp_path / "w.onnx") > 0.01


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_export_without_a_package(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(__import__("sys").modules, name, None if name == package else torch)
    with pytest.raises(UserError, match=rf"ONNX needs {package}: pip install 'unshuffle\[onnx\]'"):
        export(build_backbone("tiny"), tmp_path / "w.onnx", "onnx")


def test_wrong_suffix_and_existing_file(tmp_path: Path) -> None:
    backbone = build_backbone("tiny")
    with pytest.raises(UserError, match=r"must end with \.pth"):
        export(backbone, tmp_path / "w.safetensors", "torchvision")
    export(backbone, tmp_path / "w.pth", "torchvision")
    with pytest.raises(UserError, match="exists"):
        export(backbone, tmp_path / "w.pth", "torchvision")


def test_default_output_files(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").touch()
    assert default_file(str(tmp_path), "onnx") == tmp_path / "backbone.onnx"
    assert default_file(str(tmp_path), "safetensors", fold=True) == tmp_path / "backbone-folded.safetensors"
    assert default_file(str(tmp_path / "w.safetensors"), "torchvision") == tmp_path / "w.pth"
    assert default_file("torchvision:alexnet", "onnx") == Path("torchvision-alexnet.onnx")


def test_exporting_safetensors_as_safetensors_raises(tmp_path: Path) -> None:
    file = tmp_path / "backbone.safetensors"
    assert default_file(str(tmp_path), "safetensors") == file, "a run without weights is reported elsewhere"
    file.touch()
    for weights in (tmp_path, file):
        with pytest.raises(UserError, match=r"backbone.safetensors is already a safetensors file: use it"):
            default_file(str(weights), "safetensors")


def test_metadata_of_a_safetensors_export(tmp_path: Path) -> None:
    export(trained("tiny", tmp_path), tmp_path / "w.safetensors", "safetensors")
    metadata = read_weights(tmp_path / "w.safetensors")[1]
    assert metadata == read_weights(tmp_path / "trained.safetensors")[1]
