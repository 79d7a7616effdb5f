import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from unshuffle.cli import run as command_line
from unshuffle.models.registry import IMAGENET
from unshuffle.models.weights import load_backbone
from unshuffle.report.model_card import model_card
from unshuffle.report.results import task_errors
from unshuffle.runs.run import Run


def test_the_card_states_the_figures_of_its_run(run: Run) -> None:
    card = model_card(load_backbone(run.folder), "mine", run)
    for row in task_errors(run):
        assert f"| {row.task}, {row.kind} error | {row.initial:.3f} | {row.trained:.3f} | {row.chance:.3f} |" in card
    assert f"{run.config.optim.iterations:,}, each with 4 spatial, 4 temporal samples" in card
    top1 = [entry for entry in run.metrics("monitor") if "top1" in entry][-1]["top1"]
    assert f"| this network | {top1:.1f} |" in card
    assert "\n# mine\n" in card


def test_the_card_names_no_path_of_the_machine(run: Run) -> None:
    assert str(run.folder.parent) not in model_card(load_backbone(run.folder), "mine", run)


@pytest.mark.parametrize(
    ("init", "stated"),
    [
        (None, "random"),
        ("pretrained", "those of the package unshuffle, for research only (see [limits](#limits))"),
        ("hf:me/mine", "`hf:me/mine`"),
        ("/home/me/secret/w.pth", "a local file or run, whose terms and data count too"),
    ],
)
def test_the_card_states_the_initial_weights(init: str | None, stated: str, run: Run) -> None:
    backbone = load_backbone(run.folder)
    started = Run(run.folder)
    started.__dict__["config"] = replace(run.config, init=None if init is None else Path(init))
    card = model_card(backbone, "mine", started)
    assert f"| initial weights | {stated} |" in card and "secret" not in card
    assert ("may not be used commercially" in card) == ("ImageNet validation set" in card) == (init == "pretrained")
    assert ("license_name: research-only" in card) == (init == "pretrained")


def test_the_card_of_the_weights_of_the_package_states_their_licence(tmp_path: Path) -> None:
    assert command_line(["export", "pretrained", "--format", "hub", "--half", "--out", str(tmp_path / "hub")]) == 0
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "license_name: research-only" in card and "4,000 images of the ImageNet validation set" in card


def test_a_sampler_is_stated_where_a_task_has_one(run: Run, tiny_run: Callable[..., Run], tmp_path: Path) -> None:
    assert "| sampler | reinforce |" in model_card(load_backbone(run.folder), "mine", run)
    rotation = tiny_run(tmp_path / "rotation", tasks="R")
    assert "| sampler |" not in model_card(load_backbone(rotation.folder), "mine", rotation)


def test_hugging_face_reads_the_header(run: Run) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(model_card(load_backbone(run.folder), "mine", run))
    assert card.data.library_name == "unshuffle" and card.data.pipeline_tag == "image-feature-extraction"
    assert yaml.safe_load(card.data.to_yaml())["tags"] == ["unshuffle", "self-supervised-learning"]


def test_a_card_without_a_run_states_no_figures(run: Run) -> None:
    backbone = load_backbone(run.folder)
    backbone.normalisation = IMAGENET
    card = model_card(backbone, "mine")
    assert "## Figures" not in card and "mean 0.485, 0.456, 0.406" in card


def test_the_command_writes_a_folder_with_the_card(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hub"
    assert command_line(["export", str(run.folder), "--format", "hub", "--out", str(out)]) == 0
    assert f"upload it with: hf upload OWNER/NAME {out}" in capsys.readouterr().out
    assert (out / "README.md").read_text() == model_card(load_backbone(run.folder), run.folder.name, run)
    assert json.loads((out / "config.json").read_text())["architecture"] == run.config.model.backbone
    again = tmp_path / "again"
    assert command_line(["export", str(run.weights), "--format", "hub", "--half", "--out", str(again)]) == 0
    assert "## Figures" in (again / "README.md").read_text()
    assert command_line(["export", str(out), "--format", "torchvision", "--out", str(tmp_path / "w.pth")]) == 0
    assert command_line(["export", str(tmp_path / "elsewhere"), "--format", "hub"]) == 2
