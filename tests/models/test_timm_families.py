"""Small members of timm's families, from pretraining at tile size to a file that timm itself loads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from unshuffle import cli
from unshuffle.config import Config, paper
from unshuffle.errors import UserError
from unshuffle.evaluation.features import extract
from unshuffle.models import build_backbone
from unshuffle.models.export import export
from unshuffle.models.registry import backbone_features, fitting_crop_size
from unshuffle.models.weights import load_backbone
from unshuffle.options import merge
from unshuffle.pretraining import run_pretraining
from unshuffle.runs.run import Run
from unshuffle.training.trainer import fit_crop_sizes, initial_backbone

timm = pytest.importorskip("timm")

FAMILIES = {  # and the crop size that 75 becomes
    "resnet10t": 75,
    "convnext_atto": 75,
    "efficientnet_b0": 75,
    "regnetx_002": 75,
    "vit_tiny_patch16_224": 80,
    "swin_tiny_patch4_window7_224": 84,
}


def config_of(name: str, **changes: Any) -> Config:
    """Two iterations with the crop sizes of the preset `paper`, on few images."""
    values: dict[str, Any] = {
        "device": "cpu",
        "tasks": "S+I",
        "model": {"backbone": f"timm:{name}"},
        "optim": {"iterations": 2, "batch_size": 2, "milestones": [], "precision": "bf16"},  # as on a GPU
        "data": {"val_size": 2, "test_size": 0, "workers": 1},
        "synthetic": {"images": 10, "clips": 2, "image_size": 128, "gallery": 4, "queries": 2},
        "spatial": {"grid": 2, "permutations": 4, "head": {"fc6": 8, "hidden": 8}},
        "instance": {"hidden": 8, "output": 4},
        "policy": {"sampler": "uniform", "interval": 2, "batches": 2, "num_groups": 2},
        "log": {"pictures": False, "monitor_every": 2},
    }
    return merge(merge(paper(), values), changes)


def trained(config: Config, out: Path) -> Run:
    return run_pretraining(merge(config, {"out": str(out)}), console=Console(quiet=True))


def assert_timm_loads(file: Path, name: str, images: torch.Tensor, expected: torch.Tensor) -> None:
    """A timm model of the same name takes all weights but those of its classifier, and computes the same."""
    whole = timm.create_model(name, pretrained=False).eval()
    missing, unexpected = whole.load_state_dict(torch.load(file), strict=False)
    classifier = whole.pretrained_cfg["classifier"]
    assert unexpected == [] and sorted(missing) == [f"{classifier}.bias", f"{classifier}.weight"]
    with torch.no_grad():
        pooled = whole.forward_head(whole.forward_features(images), pre_logits=True)
    torch.testing.assert_close(expected.flatten(1), pooled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name.startswith("swin") else name for name in FAMILIES]
)
def test_a_family_trains_at_tile_size_and_is_evaluated_and_exported(name: str, tmp_path: Path) -> None:
    run = trained(config_of(name), tmp_path / "run")
    assert run.config.spatial.crop_size == FAMILIES[name] and run.config.instance.crop_size == 112
    last = list(run.metrics("train"))[-1]
    assert set(last["loss"]) == {"spatial", "instance"} and np.isfinite(list(last["loss"].values())).all()
    backbone = load_backbone(run.folder)
    untrained = build_backbone(f"timm:{name}").state_dict()
    assert backbone.architecture == f"timm:{name}" and backbone.state_dict().keys() == untrained.keys()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)
    features = extract(backbone, pixels, torch.device("cpu"))
    assert features.shape == (2, backbone.channels) and features.isfinite().all()
    assert not torch.allclose(features[0], features[1])
    export(backbone, tmp_path / "w.pth", "torchvision")
    images = torch.randn(1, 3, backbone.eval_size, backbone.eval_size)
    with torch.no_grad():
        assert_timm_loads(tmp_path / "w.pth", name, images, backbone(images))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_weight_gets_a_gradient_at_tile_size(name: str) -> None:
    backbone, side = build_backbone(f"timm:{name}").train(), FAMILIES[name]
    maps = backbone(torch.randn(2, 3, side, side))
    assert maps.shape == (2, backbone.channels, 1, 1) and backbone_features(backbone, side) == backbone.channels
    maps.square().sum().backward()
    assert all(weight.grad is not None for weight in backbone.parameters())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_a_network_for_any_size_is_timms_own_at_its_published_size(name: str) -> None:
    torch.manual_seed(0)
    fixed = timm.create_model(name, pretrained=False, num_classes=0).eval()
    backbone = build_backbone(f"timm:{name}").eval()
    backbone.get_submodule("network").load_state_dict(fixed.state_dict())
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images).flatten(1), fixed(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_starts_from_local_weights_of_timm(name: str, tmp_path: Path) -> None:
    """A file with a classifier, as timm publishes it."""
    whole = timm.create_model(name, pretrained=False, num_classes=7)
    torch.save(whole.state_dict(), tmp_path / "published.pth")
    backbone = initial_backbone(config_of(name, init=str(tmp_path / "published.pth")))
    own = backbone.get_submodule("network").state_dict()
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in own.items())


@pytest.mark.parametrize(
    ("name", "asked", "fitting"),
    [
        ("resnet10t", 24, 24),
        ("convnext_atto", 24, 32),
        ("vit_tiny_patch16_224", 112, 112),
        ("vit_tiny_patch16_224", 24, 32),
        ("swin_tiny_patch4_window7_224", 112, 112),
        ("pvt_v2_b0", 75, 75),  # its patches overlap
        ("mixer_s16_224", 75, 224),
        ("mixer_s16_224", 300, 224),
    ],
)
def test_crop_sizes_are_fitted_to_the_network(name: str, asked: int, fitting: int) -> None:
    assert fitting_crop_size(build_backbone(f"timm:{name}"), asked) == fitting


def test_what_was_fitted_is_said() -> None:
    config, sentences = fit_crop_sizes(config_of("vit_tiny_patch16_224"))
    assert config.spatial.crop_size == 80 and config.instance.crop_size == 112
    assert sentences == ["spatial.crop_size is 80, as 75 does not suit timm:vit_tiny_patch16_224"]
    assert fit_crop_sizes(config) == (config, [])
    other = merge(config, {"model": {"backbone": "resnet18"}})
    assert fit_crop_sizes(other) == (other, []), "only timm's networks are fitted"


def refuse(images: torch.Tensor) -> torch.Tensor:
    raise AssertionError("this network takes no images")


def test_where_no_size_fits_the_network_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = build_backbone("timm:resnet10t")
    monkeypatch.setattr(backbone, "forward", refuse)
    assert fitting_crop_size(backbone, 75) == 75
    with pytest.raises(UserError, match="size 75 does not suit this backbone: this network takes no images"):
        backbone_features(backbone, 75)


def test_synchronised_normalisation_of_other_classes_is_refused() -> None:
    with pytest.raises(UserError, match="sync_bn is not available for timm:efficientnet_b0, which has layers"):
        initial_backbone(config_of("efficientnet_b0", model={"backbone": "timm:efficientnet_b0", "sync_bn": True}))
    initial_backbone(config_of("resnet10t", model={"backbone": "timm:resnet10t", "sync_bn": True}))


@pytest.mark.slow
@pytest.mark.parametrize("from_weights", [False, True])
def test_resnet18_from_pretraining_to_timm_by_the_command_line(
    from_weights: bool, tmp_path: Path, classes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {}
    if from_weights:
        torch.save(timm.create_model("resnet18", pretrained=False).state_dict(), tmp_path / "published.pth")
        changes = {"init": "published.pth"}
    run = trained(config_of("resnet18", **changes), tmp_path / "run")
    options = ["--preset", "quick", "--train", str(classes[0]), "--test", str(classes[1]), "--device", "cpu"]
    assert cli.run(["evaluate", "retrieval", "--weights", "run", *options, "--json", "r.json"]) == 0
    assert 0 <= json.loads(Path("r.json").read_text())["metrics"]["top1"] <= 100
    assert cli.run(["export", "run", "--format", "torchvision"]) == 0
    images = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert_timm_loads(run.folder / "backbone.pth", "resnet18", images, load_backbone("run")(images))
