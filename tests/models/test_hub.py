import json
from pathlib import Path

import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.evaluation.features import find_backbone
from unshuffle.models import BACKBONES, Backbone, build_backbone
from unshuffle.models.export import default_folder, export_to_hub
from unshuffle.models.hub import hub_weights
from unshuffle.models.registry import PER_IMAGE, Normalisation
from unshuffle.models.weights import load_backbone, load_into

huggingface_hub = pytest.importorskip("huggingface_hub")


def trained(name: str) -> Backbone:
    """A backbone with running statistics as after training."""
    backbone = build_backbone(name)
    with torch.no_grad():
        backbone.train()(torch.randn(2, 3, 96, 96) + 1)
    return backbone.for_evaluation()


def assert_same_features(one: torch.nn.Module, other: torch.nn.Module, side: int = 96) -> None:
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        torch.testing.assert_close(one(images).flatten(1), other(images).flatten(1), rtol=1e-4, atol=1e-5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Hugging Face, and no network."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return folder


def put_into_cache(cache: Path, repository: str, folder: Path, commit: str = "0" * 40, branch: str = "main") -> None:
    """Store a folder as huggingface_hub does after a download."""
    root = cache / huggingface_hub.constants.REPO_ID_SEPARATOR.join(["models", *repository.split("/")])
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / branch).write_text(commit)
    (root / "blobs").mkdir(exist_ok=True)
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        blob = root / "blobs" / f"{commit[:4]}-{file.name}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"resnet50"}))
def test_a_folder_for_the_hub_loads_as_the_same_backbone(name: str, half: bool, tmp_path: Path) -> None:
    backbone = trained(name)
    exported = export_to_hub(backbone, tmp_path / "hub", "card", half=half)
    assert {file.name for file in (tmp_path / "hub").iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert exported["bytes"] == (tmp_path / "hub" / "model.safetensors").stat().st_size
    loaded = load_backbone(tmp_path / "hub")
    assert type(loaded) is type(backbone) and loaded.normalisation == PER_IMAGE
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert config["architecture"] == name and config["num_features"] == backbone.channels
    if not half:
        assert_same_features(loaded, backbone, 127)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto"])
def test_timm_loads_its_networks_from_the_folder(name: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    backbone = build_backbone(f"timm:{name}").for_evaluation()
    export_to_hub(backbone, tmp_path / "hub", "card")
    network = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True, num_classes=0).eval()
    assert_same_features(network, backbone, backbone.eval_size)
    with_head = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True, num_classes=7)
    assert with_head(torch.zeros(1, 3, backbone.eval_size, backbone.eval_size)).shape == (1, 7)
    published = network.pretrained_cfg.keys() & {"license", "origin_url", "paper_ids", "tag"}
    assert not any(network.pretrained_cfg[key] for key in published), "timm's own weights are not in the folder"
    loaded = load_backbone(tmp_path / "hub")
    assert loaded.architecture == f"timm:{name}" and loaded.normalisation == PER_IMAGE
    assert_same_features(loaded, backbone, backbone.eval_size)


def test_timm_is_told_the_normalisation_that_it_knows(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    backbone = build_backbone("timm:resnet10t").for_evaluation()
    backbone.normalisation = stated = Normalisation((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    export_to_hub(backbone, tmp_path / "hub", "card")
    network = timm.create_model(f"local-dir:{tmp_path / 'hub'}", num_classes=0)
    resolved = timm.data.resolve_model_data_config(network)
    assert Normalisation(tuple(resolved["mean"]), tuple(resolved["std"])) == stated
    assert tuple(resolved["input_size"]) == (3, 176, 176)
    assert load_backbone(tmp_path / "hub").normalisation == stated


def test_weights_of_the_hub_are_read_from_the_local_cache(tmp_path: Path, cache: Path) -> None:
    first, second = trained("tiny"), trained("tiny")
    export_to_hub(first, tmp_path / "first", "card")
    export_to_hub(second, tmp_path / "second", "card")
    put_into_cache(cache, "me/mine", tmp_path / "first", "1" * 40, "old")
    put_into_cache(cache, "me/mine", tmp_path / "second", "2" * 40)
    assert_same_features(find_backbone("hf:me/mine"), second)
    assert_same_features(load_backbone("hf:me/mine@old"), first)
    further = build_backbone("tiny")
    load_into(further, Path("hf:me/mine"))
    assert_same_features(further.for_evaluation(), second)


def test_timms_own_repositories_are_read_with_their_config(tmp_path: Path, cache: Path) -> None:
    timm = pytest.importorskip("timm")
    from timm.models._hub import save_for_hf

    network = timm.create_model("resnet10t", pretrained=False).eval()
    save_for_hf(network, str(tmp_path / "timm"), safe_serialization=True)
    put_into_cache(cache, "somebody/photos", tmp_path / "timm")
    backbone = find_backbone("hf:somebody/photos")
    assert backbone.architecture == "timm:resnet10t"
    network.reset_classifier(0)
    assert_same_features(backbone, network)


def test_nothing_is_downloaded_unless_asked(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(repository: str, **options: object) -> None:
        asked.append(repository)
        export_to_hub(trained("tiny"), tmp_path / "hub", "card")
        put_into_cache(cache, repository, tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"^hf:me/mine is not in the Hugging Face cache .* add --download, or run hf"):
        find_backbone("hf:me/mine")
    assert not asked
    assert find_backbone("hf:me/mine", download=True).architecture == "tiny"
    assert asked == ["me/mine"]


def test_errors_are_one_sentence(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^'hf:mine' is no name on the Hugging Face hub: write hf:OWNER/NAME$"):
        find_backbone("hf:mine")
    with pytest.raises(UserError, match=r"^hf:me/mine cannot be downloaded: [^\n]+$"):
        find_backbone("hf:me/mine", download=True)
    with pytest.raises(UserError, match=r"^--download fetches weights from the Hugging Face hub .* random is not"):
        find_backbone("random", download=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    put_into_cache(cache, "me/empty", tmp_path / "empty")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: None)
    with pytest.raises(UserError, match=r"^hf:me/empty holds no weights"):
        hub_weights("hf:me/empty", download=True)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    export_to_hub(build_backbone("tiny"), tmp_path / "hub", "card")  # an empty one is used
    with pytest.raises(UserError, match="hub is not empty"):
        export_to_hub(build_backbone("tiny"), tmp_path / "hub", "another card")
    assert (tmp_path / "hub" / "README.md").read_text() == "card"
    assert [entry.name for entry in tmp_path.iterdir()] == ["hub"]


def test_the_default_folder(tmp_path: Path) -> None:
    assert default_folder(str(tmp_path)) == tmp_path / "hub"
    assert default_folder("hf:me/mine") == Path("hf-me-mine-hub")
