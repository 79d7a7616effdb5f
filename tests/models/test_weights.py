import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import save_file

import unshuffle
from unshuffle import cli
from unshuffle.errors import UserError
from unshuffle.evaluation.features import find_backbone
from unshuffle.models import BACKBONES, Backbone, build_backbone, weights
from unshuffle.models.export import export
from unshuffle.models.registry import IMAGENET, PER_IMAGE
from unshuffle.models.weights import load_backbone, load_into, read_weights, save_backbone, write_weights

PERMUTATIONS = {"spatial": np.array([[1, 0, 2], [2, 1, 0]]), "temporal": np.array([[1, 0]])}


def saved(path: Path, name: str = "tiny") -> Backbone:
    """A backbone with running statistics as after training, written to the path."""
    backbone = build_backbone(name)
    side = 75 if name in ("alexnet", "caffenet", "caffenet-lrn") else 32
    with torch.no_grad():
        backbone.train()(torch.randn(2, 3, side, side) + 1)
    save_backbone(backbone, path, crop_sizes={"spatial": 24, "rotation": 48}, permutations=PERMUTATIONS)
    return backbone


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_saving_and_loading_keeps_the_outputs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "backbone.safetensors"
    backbone = saved(path, name)
    loaded = load_backbone(path)
    assert type(loaded) is type(backbone) and not loaded.training
    images = torch.randn(1, 3, 127, 127)
    with torch.no_grad():
        assert torch.equal(loaded(images), backbone.for_evaluation()(images))
        assert torch.equal(load_backbone(str(tmp_path))(images), loaded(images)), "a run folder works too"
        assert not torch.equal(build_backbone(name).for_evaluation()(images), loaded(images))


def test_metadata_of_a_saved_backbone(tmp_path: Path) -> None:
    saved(tmp_path / "weights.safetensors")
    with safe_open(tmp_path / "weights.safetensors", framework="pt") as stored:
        metadata = stored.metadata()
    assert metadata["architecture"] == "tiny"
    assert metadata["input_size"] == "96"
    assert (metadata["spatial_crop_size"], metadata["rotation_crop_size"]) == ("24", "48")
    assert metadata["normalisation"] == PER_IMAGE.to_json() == '{"mean": [], "std": []}'
    assert json.loads(metadata["spatial_permutations"]) == PERMUTATIONS["spatial"].tolist()
    assert json.loads(metadata["temporal_permutations"]) == PERMUTATIONS["temporal"].tolist()
    checksum = metadata.pop("crc32")
    assert len(checksum) == 8 and read_weights(tmp_path / "weights.safetensors")[1] == metadata


def test_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    backbone = build_backbone("tiny")
    metadata = {f"key {number}": "ä" * number for number in range(20)}
    for order in (sorted(metadata), sorted(metadata, reverse=True)):
        write_weights(backbone, {key: metadata[key] for key in order}, tmp_path / f"{order[0]}.safetensors")
    first, second = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert first == second
    weights, stored = read_weights(next(tmp_path.iterdir()))
    assert stored == metadata
    assert all(torch.equal(weights[key], value) for key, value in backbone.state_dict().items())
    with (tmp_path / "key 0.safetensors").open("rb") as file:
        assert int.from_bytes(file.read(8), "little") % 8 == 0, "tensors are aligned"


def damaged_copies(path: Path, step: int) -> Iterator[int]:
    """Write the file again with one wrong bit, for every so many bits, and yield the byte."""
    good = path.read_bytes()
    for position in range(0, 8 * len(good), step):
        damaged = bytearray(good)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        yield position // 8
    path.write_bytes(good)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0))


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_no_wrong_bit_in_weights_is_loaded(tmp_path: Path, step: int) -> None:
    path, metadata = tmp_path / "w.safetensors", {"architecture": "tiny", "spatial_permutations": "[[1, 0]]"}
    write_weights(Small(), metadata, path)
    weights, _ = read_weights(path)
    refused = 0
    for _ in damaged_copies(path, step):
        try:
            stored, stated = read_weights(path)
        except UserError as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
        else:  # only the name of the checksum's own key may be wrong: then there is none to compare
            assert torch.equal(stored["weight"], weights["weight"]) and metadata.items() < stated.items()
    assert refused >= 8 * (path.stat().st_size - 5) // step - 1


def test_a_damaged_state_dict_is_refused_and_a_foreign_one_is_not(tmp_path: Path) -> None:
    path, old = tmp_path / "w.pth", tmp_path / "old.pth"
    weights = {"weight": torch.arange(1000.0)}
    torch.save(weights, path)
    torch.save(weights, old, _use_new_zipfile_serialization=False)  # without checksums
    for file in (path, old):
        assert torch.equal(read_weights(file)[0]["weight"], weights["weight"])
    content = bytearray(path.read_bytes())
    content[content.index(weights["weight"].numpy().tobytes()[40:80])] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"w.pth is damaged \(wrong checksum of .*\): copy or export it again"):
        read_weights(path)


def test_saving_leaves_the_backbone_unchanged(tmp_path: Path) -> None:
    backbone = build_backbone("tiny").train()
    save_backbone(backbone, tmp_path / "w.safetensors", crop_sizes={}, permutations={})
    assert backbone.training and all(weight.requires_grad for weight in backbone.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_raise(value: float, tmp_path: Path) -> None:
    backbone = build_backbone("tiny")
    backbone.state_dict()["conv3.1.running_var"][5] = value
    save_backbone(backbone, tmp_path / "w.safetensors", crop_sizes={}, permutations={})
    with pytest.raises(UserError, match=r"values that are not finite, first in conv3\.1\.running_var"):
        load_backbone(tmp_path / "w.safetensors")


def test_weights_of_another_architecture_raise(tmp_path: Path) -> None:
    saved(tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="weights of tiny, not of caffenet"):
        load_backbone(tmp_path / "w.safetensors", architecture="caffenet")
    backbone = build_backbone("caffenet")
    advice = "; --backbone chooses the network to train$"
    with pytest.raises(UserError, match=f"weights of tiny, not of caffenet{advice}"):
        load_into(backbone, tmp_path / "w.safetensors")
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "w.pth")
    with pytest.raises(UserError, match=f"does not fit caffenet: it lacks .*{advice}"):
        load_into(backbone, tmp_path / "w.pth")


def test_a_file_without_architecture_is_recognised(tmp_path: Path) -> None:
    backbone = build_backbone("tiny").eval()
    save_file(backbone.state_dict(), tmp_path / "w.safetensors")
    images = torch.randn(1, 3, 24, 24)
    with torch.no_grad():
        for architecture in ("tiny", None):
            loaded = load_backbone(tmp_path / "w.safetensors", architecture)
            assert torch.equal(loaded(images), backbone(images))
    with pytest.raises(UserError, match=r"does not fit caffenet: it lacks conv5.0.weight and"):
        load_backbone(tmp_path / "w.safetensors", architecture="caffenet")


@pytest.mark.parametrize(
    "config",
    [
        "preset: demo\nno_such_key: 1\n",
        "preset: demo\ntasks: X\nregistered: {other: {hidden: 8}}\n",
        "preset: demo\noptim: [1]\n",
    ],
    ids=["of another version", "with a task of another package", "damaged"],
)
def test_weights_do_not_need_the_config_beside_them(config: str, tmp_path: Path) -> None:
    backbone = build_backbone("tiny")
    save_backbone(backbone, tmp_path / "backbone.safetensors", crop_sizes={}, permutations={}, iterations=3)
    (tmp_path / "config.yaml").write_text(config)
    for path in (tmp_path, tmp_path / "backbone.safetensors"):
        assert load_backbone(path).architecture == "tiny"


def test_a_file_that_fits_no_backbone_raises(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"does not state its architecture and fits none that is recognised; AlexNe"):
        load_backbone(tmp_path / "w.safetensors")
    torch.save([1, 2], tmp_path / "w.pth")
    with pytest.raises(UserError, match="contains no state dict"):
        load_backbone(tmp_path / "w.pth")
    weights = {**build_backbone("tiny").state_dict(), "conv1.0.weight": torch.zeros(1, 2)}
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"conv1.0.weight has the shape \(1, 2\), not \(32, 3, 5, 5\)"):
        load_backbone(tmp_path / "w.pth", "tiny")


def test_missing_running_statistics_are_not_taken_for_a_folded_backbone(tmp_path: Path) -> None:
    weights = build_backbone("tiny").state_dict()
    del weights["conv1.1.running_mean"]
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(UserError, match="fits none that is recognised"):
        load_backbone(tmp_path / "w.pth")


def author_state_dict(prefix: str = "") -> dict[str, torch.Tensor]:
    """A state dict with the names of the author's public jigsaw network, including its heads."""
    shapes = {1: (96, 3, 11, 11), 2: (256, 48, 5, 5), 3: (384, 256, 3, 3), 4: (384, 192, 3, 3), 5: (256, 192, 3, 3)}
    weights = {}
    for number, shape in shapes.items():
        weights[f"{prefix}conv.conv{number}_s1.weight"] = torch.randn(shape) / 50
        weights[f"{prefix}conv.conv{number}_s1.bias"] = torch.randn(shape[0])
    return weights | {f"{prefix}fc6.fc6_s1.weight": torch.randn(8, 9), f"{prefix}classifier.fc8.bias": torch.randn(3)}


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("nested", [False, True])
def test_files_of_the_author_load(prefix: str, nested: bool, tmp_path: Path) -> None:
    weights = author_state_dict(prefix)
    torch.save({"epoch": 3, "state_dict": weights} if nested else weights, tmp_path / "jps.pth.tar")
    backbone = load_backbone(tmp_path / "jps.pth.tar")
    assert backbone.architecture == "caffenet-lrn" and backbone.normalisation == PER_IMAGE
    for number in range(1, 6):
        conv = backbone.get_submodule(f"conv{number}")
        assert torch.equal(conv.weight, weights[f"{prefix}conv.conv{number}_s1.weight"])
        assert torch.equal(conv.bias, weights[f"{prefix}conv.conv{number}_s1.bias"])


def test_files_of_torchvision_load(tmp_path: Path) -> None:
    alexnet = {**build_backbone("alexnet").state_dict(), "classifier.1.weight": torch.randn(4, 4)}
    torch.save(alexnet, tmp_path / "alexnet.pth")
    backbone = load_backbone(tmp_path / "alexnet.pth")
    assert backbone.architecture == "alexnet" and backbone.normalisation == IMAGENET
    assert torch.equal(backbone.state_dict()["features.10.bias"], alexnet["features.10.bias"])
    resnet = torchvision.models.resnet18(weights=None)
    old = {key: value for key, value in resnet.state_dict().items() if not key.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "resnet.pth")
    backbone = load_backbone(tmp_path / "resnet.pth")
    assert backbone.architecture == "resnet18" and backbone.normalisation == IMAGENET
    assert torch.equal(backbone.state_dict()["network.layer4.1.conv2.weight"], old["layer4.1.conv2.weight"])


RESIDUAL = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d"]


def shapes_of(name: str) -> dict[str, torch.Tensor]:
    """The state dict of one of torchvision's networks, with its classifier: zeros that take no memory on disk."""
    with torch.device("meta"):
        network = torchvision.models.get_model(name, weights=None)
    return {key: torch.zeros((), dtype=value.dtype).expand(value.shape) for key, value in network.state_dict().items()}


@pytest.mark.parametrize("name", RESIDUAL)
def test_every_residual_network_of_torchvision_is_told_apart(name: str, tmp_path: Path) -> None:
    torch.save(shapes_of(name), tmp_path / "w.pth")
    backbone = load_backbone(tmp_path / "w.pth")
    assert backbone.architecture.removeprefix("torchvision:") == name and backbone.normalisation == IMAGENET
    with torch.device("meta"):
        expected = torchvision.models.get_model(name, weights=None).state_dict()
    assert {f"network.{key}" for key in expected if not key.startswith("fc.")} == backbone.state_dict().keys()


def test_a_larger_network_is_not_taken_for_a_smaller_one(tmp_path: Path) -> None:
    torch.save(shapes_of("resnet34"), tmp_path / "w.pth")
    message = (
        r"w.pth does not fit resnet18: it also holds layer1.2.conv1.weight and 79 more, .* torchvision:resnet34 \(100 %"
    )
    with pytest.raises(UserError, match=message):
        load_backbone(tmp_path / "w.pth", "resnet18")
    with pytest.raises(UserError, match=message):
        load_into(build_backbone("resnet18"), tmp_path / "w.pth")
    assert load_backbone(tmp_path / "w.pth", "resnet34").architecture == "torchvision:resnet34"


def test_a_file_with_weights_that_are_not_accounted_for_is_refused(tmp_path: Path) -> None:
    weights = shapes_of("resnet34")
    without_a_block = {key: value for key, value in weights.items() if not key.startswith("layer3.5.")}
    torch.save(without_a_block, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"fits none that is recognised; nearest are torchvision:resnet34 \(94 % of"):
        load_backbone(tmp_path / "w.pth")
    tiny = build_backbone("tiny").state_dict()
    torch.save({**tiny, "conv5.0.weight": torch.zeros(96, 96, 3, 3)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="fits none that is recognised; nearest is tiny"):
        load_backbone(tmp_path / "w.pth")
    assert load_backbone(tmp_path / "w.pth", "tiny").architecture == "tiny", "other modules, on the user's word"


@pytest.mark.parametrize(
    "beside",
    [
        {"fc.weight": (10, 96), "fc.bias": (10,)},
        {"classifier.1.weight": (10, 96), "projection_head.layers.0.weight": (8, 8)},
        {"head.fc.weight": (10, 96), "queue": (8, 8), "queue_ptr": (1,), "optimizer.step": (1,)},
        {"momentum_encoder.conv1.0.weight": (32, 3, 5, 5), "predictor.0.weight": (8, 8)},
    ],
)
@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder_q."])
def test_heads_and_the_state_of_training_are_left_out(
    beside: dict[str, tuple[int, ...]], prefix: str, tmp_path: Path
) -> None:
    weights = {prefix + key: value for key, value in build_backbone("tiny").state_dict().items()}
    outside = prefix.removesuffix("encoder_q.")  # of what MoCo calls the query encoder
    torch.save(weights | {outside + key: torch.zeros(shape) for key, shape in beside.items()}, tmp_path / "w.pth")
    loaded = load_backbone(tmp_path / "w.pth")
    assert loaded.architecture == "tiny"
    assert torch.equal(loaded.state_dict()["conv1.0.weight"], weights[f"{prefix}conv1.0.weight"])


def test_of_two_encoders_the_one_that_is_trained_is_taken(tmp_path: Path) -> None:
    query, key = build_backbone("tiny").state_dict(), build_backbone("tiny").state_dict()
    for names, problem in (
        (("encoder_q", "encoder_k"), None),
        (("left", "right"), r"several networks .*left\., right\."),
    ):
        both = {f"{name}.{k}": v for name, state in zip(names, (query, key), strict=True) for k, v in state.items()}
        torch.save({"state_dict": dict(reversed(both.items()))} if problem is None else both, tmp_path / "w.pth")
        if problem is None:
            loaded = load_backbone(tmp_path / "w.pth").state_dict()
            assert torch.equal(loaded["conv1.0.weight"], query["conv1.0.weight"])
        else:
            with pytest.raises(UserError, match=problem):
                load_backbone(tmp_path / "w.pth")


def test_a_momentum_encoder_alone_is_taken(tmp_path: Path) -> None:
    weights = build_backbone("tiny").state_dict()
    torch.save({f"momentum_encoder.{key}": value for key, value in weights.items()}, tmp_path / "w.pth")
    assert torch.equal(load_backbone(tmp_path / "w.pth").state_dict()["conv1.0.weight"], weights["conv1.0.weight"])


def test_the_command_line_says_which_architecture_a_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = build_backbone("tiny").state_dict()
    torch.save({**weights, "unknown.weight": torch.zeros(2, 2)}, tmp_path / "w.pth")
    line = ["export", str(tmp_path / "w.pth"), "--out", str(tmp_path / "w.safetensors")]
    assert cli.run(line) == 2
    assert "can be named with --architecture" in capsys.readouterr().err
    assert cli.run([*line, "--architecture", "tiny"]) == 0
    assert load_backbone(tmp_path / "w.safetensors").architecture == "tiny"
    evaluation = ["evaluate", "rankme", "--weights", str(tmp_path / "w.pth"), "--images", "synthetic:images:6:0"]
    assert cli.run([*evaluation, "--architecture", "tiny", "--device", "cpu"]) == 0
    assert cli.run(["export", "random:tiny", "--architecture", "tiny", "--out", str(tmp_path / "r.safetensors")]) == 2
    assert "random:tiny is none" in capsys.readouterr().err


def test_loading_for_training_keeps_the_normalisation_of_our_crops(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "w.pth")
    backbone = build_backbone("resnet18")
    load_into(backbone, tmp_path / "w.pth")
    assert backbone.normalisation == PER_IMAGE
    stored = torch.load(tmp_path / "w.pth", weights_only=True)
    assert torch.equal(backbone.state_dict()["network.conv1.weight"], stored["conv1.weight"])


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_damaged_torch_files_raise(kept: int, tmp_path: Path) -> None:
    torch.save(author_state_dict(), tmp_path / "w.pth")
    (tmp_path / "w.pth").write_bytes((tmp_path / "w.pth").read_bytes()[:kept])
    with pytest.raises(UserError, match=r"w\.pth cannot be read safely as a state dict"):
        load_backbone(tmp_path / "w.pth")


class RunsCode:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code was run",)


def test_a_file_that_would_run_code_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"conv1.0.weight": RunsCode()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="safely"):
        load_backbone(tmp_path / "w.pth")
    assert "code was run" not in capsys.readouterr().out


def test_an_unregistered_architecture_raises(tmp_path: Path) -> None:
    save_file(build_backbone("tiny").state_dict(), tmp_path / "w.safetensors", metadata={"architecture": "vit"})
    with pytest.raises(UserError, match="no backbone 'vit'"):
        load_backbone(tmp_path / "w.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_damaged_safetensors_raise(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    saved(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"w\.safetensors is not a complete safetensors file"):
        load_backbone(path)


@pytest.mark.parametrize("name", ["", "absent.safetensors"])
def test_missing_files_raise(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights at"):
        load_backbone(tmp_path / name)


@pytest.fixture
def pretrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    """The weights that come with the package: here those of a tiny network, stored in fp16."""
    torch.manual_seed(0)
    backbone = build_backbone("tiny")
    with torch.no_grad():
        backbone.train()(torch.randn(4, 3, 48, 48) + 1)
    file = tmp_path / "package" / "pretrained.safetensors"
    file.parent.mkdir()
    export(backbone.for_evaluation(), file, "safetensors", half=True)
    monkeypatch.setattr(weights, "PRETRAINED_FILE", file)
    return backbone


def test_pretrained_weights_are_fp16_on_disk_and_fp32_in_memory(pretrained: Backbone) -> None:
    stored, _ = read_weights("pretrained")
    kinds = {value.dtype for value in stored.values() if value.ndim > 1}
    assert kinds == {torch.float16} and stored["conv1.1.running_var"].dtype == torch.float32
    whole = sum(4 * value.numel() for value in pretrained.state_dict().values())
    assert weights.PRETRAINED_FILE.stat().st_size < 0.52 * whole + 3000
    for loaded in (unshuffle.load_backbone("pretrained"), find_backbone("pretrained")):
        assert loaded.architecture == "tiny" and not loaded.training
        for key, value in loaded.state_dict().items():
            assert value.dtype == pretrained.state_dict()[key].dtype
            torch.testing.assert_close(value, pretrained.state_dict()[key], rtol=1e-3, atol=1e-5)


def test_training_can_start_from_the_pretrained_weights(pretrained: Backbone) -> None:
    backbone = build_backbone("tiny")
    load_into(backbone, Path("pretrained"))
    assert all(torch.allclose(value, pretrained.state_dict()[key], rtol=1e-3, atol=1e-5)
               for key, value in backbone.state_dict().items())  # fmt: skip
    with pytest.raises(UserError, match="pretrained contains weights of tiny, not of caffenet"):
        load_into(build_backbone("caffenet"), Path("pretrained"))


def test_the_weights_of_the_package() -> None:
    """What the model card says of them; the figures on real images are in benchmarks/results."""
    stored, metadata = read_weights("pretrained")
    assert weights.PRETRAINED_FILE.stat().st_size < 6e6
    assert "research" in weights.PRETRAINED_FILE.with_name("LICENSE").read_text()
    assert (metadata["architecture"], metadata["input_size"]) == ("caffenet", "227")
    backbone, untrained = load_backbone("pretrained"), build_backbone("caffenet")
    assert stored.keys() == untrained.state_dict().keys()
    images = torch.rand(4, 3, 227, 227, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = backbone(backbone.normalise(images)).flatten(1)
    assert features.shape == (4, 9216) and features.isfinite().all() and (features > 0).float().mean() > 0.05


def test_a_package_without_pretrained_weights_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PRETRAINED_FILE", tmp_path / "none.safetensors")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretrained").mkdir()  # the name means the package's weights, whatever else there is
    for load in (unshuffle.load_backbone, find_backbone):
        with pytest.raises(UserError, match="this installation has no pretrained weights"):
            load("pretrained")


def test_weights_too_large_for_fp16(tmp_path: Path) -> None:
    backbone = build_backbone("tiny").for_evaluation()
    torch.nn.init.constant_(next(backbone.parameters()), 1e6)
    with pytest.raises(UserError, match="too large for fp16"):
        export(backbone, tmp_path / "w.safetensors", "safetensors", half=True)
    assert not (tmp_path / "w.safetensors").exists()


def test_embedding_takes_the_pretrained_weights(pretrained: Backbone, labelled: Path, tmp_path: Path) -> None:
    line = ["embed", str(labelled), "--weights", "pretrained", "--out", str(tmp_path / "f.npy"), "--device", "cpu"]
    assert cli.run(line) == 0
    assert np.load(tmp_path / "f.npy").shape[0] == 6


def test_what_keeps_a_file_from_being_recognised_is_named(tmp_path: Path) -> None:
    torch.save({**torchvision.models.resnet18().state_dict(), "extra.weight": torch.zeros(3)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"nearest are resnet18 \(100 % of the shapes, but also extra\.weight\)"):
        load_backbone(tmp_path / "w.pth")
    assert load_backbone(tmp_path / "w.pth", "resnet18").architecture == "resnet18"
    state = torchvision.models.resnet18().state_dict()
    del state["layer1.0.conv1.weight"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"does not fit resnet18: it lacks layer1\.0\.conv1\.weight"):
        load_backbone(tmp_path / "w.pth", "resnet18")
