from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.classifier import TrainedClassifier
from unshuffle.evaluation.transfer import FineTuning
from unshuffle.evaluation.voc.classification import MultiLabelClassifier
from unshuffle.models.batch_norm import fold_batch_norm
from unshuffle.models.weights import load_backbone, write_weights


def test_one_layer_round_trip(tmp_path: Path) -> None:
    backbone = find_backbone("random:tiny")
    head = nn.Sequential(backbone, nn.Flatten(), nn.Linear(96 * 12 * 12, 4))[1:]
    kept = TrainedClassifier(backbone, head, ["a", "b", "$c$", "d"])
    path = kept.save(tmp_path / "out")
    images = torch.randn(2, 3, 96, 96)
    for place in (path, path.parent):
        loaded = TrainedClassifier.load(place)
        assert list(loaded.classes) == ["a", "b", "$c$", "d"]
        assert torch.equal(loaded.scores(images), kept.scores(images))
    assert torch.equal(load_backbone(path)(images), backbone(images)), "it also serves as weights"


def test_folded_backbone_under_three_layers(tmp_path: Path) -> None:
    network = MultiLabelClassifier(fold_batch_norm(find_backbone("random:tiny")), hidden=8, init_std=0.1).eval()
    TrainedClassifier(network.backbone, network.head, [str(label) for label in range(20)]).save(tmp_path)
    pixels = torch.randint(0, 256, (2, 96, 96, 3), dtype=torch.uint8)
    images = network.backbone.normalise(pixels.permute(0, 3, 1, 2).float() / 255)
    assert torch.allclose(TrainedClassifier.load(tmp_path).scores(images), network(pixels), atol=1e-6)


def test_fine_tuning_keeps_what_it_tested(classes: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = classes
    options = {"weights": "random:tiny", "device": "cpu", "workers": 1, "train": train, "test": test}
    FineTuning(**options, epochs=1, batch_size=6, out=tmp_path).measure(Console(quiet=True))
    loaded = TrainedClassifier.load(tmp_path)
    assert loaded.classes == ("across", "chess", "down")
    state = torch.load(next((tmp_path / "unfinished" / "checkpoints").glob("*.pt")), weights_only=True)["network"]
    assert torch.equal(state["2.weight"], loaded.head[1].weight)  # type: ignore[index]
    assert torch.equal(state["0.conv1.0.weight"], loaded.backbone.state_dict()["conv1.0.weight"])


def test_what_is_no_classifier(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no classifier at"):
        TrainedClassifier.load(tmp_path / "nowhere")
    write_weights(find_backbone("random:tiny"), {"architecture": "tiny"}, tmp_path / "backbone.safetensors")
    with pytest.raises(ValueError, match="holds no classifier"):
        TrainedClassifier.load(tmp_path / "backbone.safetensors")
