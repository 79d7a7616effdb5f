import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from unshuffle.errors import UserError
from unshuffle.models import BACKBONES, Backbone, build_backbone
from unshuffle.models.weights import load_backbone, load_into, read_weights, save_backbone

PERMUTATIONS = {"spatial": np.array([[1, 0, 2], [2, 1, 0]]), "temporal": np.array([[1, 0]])}


def saved(path: Path, name: str = "tiny") -> Backbone:
    """A trunk whose running statistics are not those of a new one, written to the path."""
    trunk = build_backbone(name)
    side = 75 if name == "caffenet" else 32
    with torch.no_grad():
        trunk.train()(torch.randn(2, 3, side, side) + 1)
    save_backbone(trunk, name, path, crop_size=24, permutations=PERMUTATIONS)
    return trunk


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / "backbone.safetensors"
    trunk = saved(path, name)
    loaded = load_backbone(path)
    assert type(loaded) is type(trunk) and not loaded.training
    images = torch.randn(1, 3, 127, 127)
    with torch.no_grad():
        assert torch.equal(loaded(images), trunk.for_evaluation()(images))
        assert torch.equal(load_backbone(str(tmp_path))(images), loaded(images)), "the folder will do"
        assert not torch.equal(build_backbone(name).for_evaluation()(images), loaded(images))


def test_metadata(tmp_path: Path) -> None:
    saved(tmp_path / "weights.safetensors")
    with safe_open(tmp_path / "weights.safetensors", framework="pt") as stored:
        metadata = stored.metadata()
    assert metadata["architecture"] == "tiny"
    assert metadata["input_size"] == "96" and metadata["training_crop_size"] == "24"
    assert "per image and channel" in metadata["normalisation"]
    assert json.loads(metadata["spatial_permutations"]) == PERMUTATIONS["spatial"].tolist()
    assert json.loads(metadata["temporal_permutations"]) == PERMUTATIONS["temporal"].tolist()
    assert read_weights(tmp_path / "weights.safetensors")[1] == metadata


def test_saving_leaves_the_trunk_alone(tmp_path: Path) -> None:
    trunk = build_backbone("tiny").train()
    save_backbone(trunk, "tiny", tmp_path / "w.safetensors", crop_size=24, permutations={})
    assert trunk.training and all(weight.requires_grad for weight in trunk.parameters())


def test_wrong_architecture(tmp_path: Path) -> None:
    saved(tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="weights of tiny, not of caffenet"):
        load_backbone(tmp_path / "w.safetensors", architecture="caffenet")
    trunk = build_backbone("caffenet")
    with pytest.raises(UserError, match="weights of tiny, not of caffenet"):
        load_into(trunk, "caffenet", tmp_path / "w.safetensors")


def test_a_file_that_does_not_name_its_architecture(tmp_path: Path) -> None:
    trunk = build_backbone("tiny").eval()
    save_file(trunk.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="does not say what architecture"):
        load_backbone(tmp_path / "w.safetensors")
    images = torch.randn(1, 3, 24, 24)
    with torch.no_grad():
        loaded = load_backbone(tmp_path / "w.safetensors", architecture="tiny")
        assert torch.equal(loaded(images), trunk(images))
    with pytest.raises(UserError, match="does not fit caffenet"):
        load_backbone(tmp_path / "w.safetensors", architecture="caffenet")


def test_an_architecture_that_is_not_registered(tmp_path: Path) -> None:
    save_file(build_backbone("tiny").state_dict(), tmp_path / "w.safetensors", metadata={"architecture": "vit"})
    with pytest.raises(UserError, match="no backbone 'vit'"):
        load_backbone(tmp_path / "w.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_damaged_files(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    saved(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"w\.safetensors is not a whole safetensors file"):
        load_backbone(path)


@pytest.mark.parametrize("name", ["", "absent.safetensors"])
def test_missing_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights at"):
        load_backbone(tmp_path / name)
