"""The public API: what docs/reference/api.md lists exists and is typed; the examples of docs/how-to/own-loop.md run."""

import inspect
import re
import shutil
from pathlib import Path

import pytest
import torch

import unshuffle
from unshuffle.runs.run import Run

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reference" / "api.md").read_text()
GUIDE = (DOCS / "how-to" / "own-loop.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", GUIDE, flags=re.MULTILINE | re.DOTALL))
EXAMPLES = {title: "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) for title, text in SECTIONS.items()}


def test_the_page_lists_what_is_public() -> None:
    assert sorted(re.findall(r"^\| `(\w+)", PAGE, flags=re.MULTILINE)) == sorted(unshuffle.__all__)
    assert sorted(unshuffle._HOMES) == sorted(unshuffle.__all__)


def test_public_names_are_listed_before_they_are_imported() -> None:
    assert set(unshuffle.__all__) <= set(dir(unshuffle))


@pytest.mark.parametrize("name", unshuffle.__all__)
def test_a_public_name_is_documented_and_typed(name: str) -> None:
    member = getattr(unshuffle, name)
    assert member.__doc__
    functions = [member] if inspect.isfunction(member) else filter(inspect.isfunction, vars(member).values())
    for function in functions:
        if function.__name__.startswith("_") and function.__name__ != "__init__":
            continue  # those of dataclasses and named tuples are Python's
        parameters = inspect.signature(function).parameters.values()
        untyped = [each.name for each in parameters if each.annotation is inspect.Parameter.empty]
        assert untyped in ([], ["self"]), f"{name}.{function.__name__}"


@pytest.mark.parametrize("name", unshuffle.__all__)
def test_the_page_names_the_first_parameters(name: str) -> None:
    (shown,) = re.findall(rf"^\| `{name}(?:\((.*?)\))?`", PAGE, flags=re.MULTILINE)
    names = re.findall(r"[A-Za-z_]+", shown)
    assert not names or names == list(inspect.signature(getattr(unshuffle, name)).parameters)[: len(names)]


@pytest.fixture
def here(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a run in runs/mine."""
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    for file in (run.weights, run.config_file):
        shutil.copy(file, tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)


def test_the_loop_trains_the_backbone(here: None) -> None:
    names: dict[str, torch.Tensor] = {}
    exec(EXAMPLES["The backbone in a plain training loop"], names)
    assert names["loss"].item() < 1.2  # ln 3 is chance
    assert all(parameter.grad is not None for parameter in names["backbone"].parameters())  # type: ignore[operator]


def test_lightning_trains_the_backbone(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    names: dict[str, object] = {"__name__": "example"}
    exec(EXAMPLES["In Lightning"], names)
    assert names["trainer"].global_step == 3  # type: ignore[attr-defined]


def test_a_task_and_a_sampler_in_another_loop(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, torch.Tensor] = {}
    exec(EXAMPLES["The spatial task in another loop"], names)
    assert names["tiles"].shape == (8, 9, 3, 24, 24) and names["labels"].shape == (8,)
    exec(EXAMPLES["A sampler in another loop"], names)
    assert capsys.readouterr().out == "tensor(True)\n"
