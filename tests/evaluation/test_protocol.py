import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Literal, get_origin

import pytest
from rich.console import Console

from unshuffle.data.dataset import FileSource, LabelledDataset
from unshuffle.data.inventory import skipped_file
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import (
    EVALUATIONS,
    LISTED,
    Evaluation,
    check_covered,
    find_evaluation,
    note_few,
    note_shared,
    note_skipped,
    published,
    published_table,
    rounded,
    skipped_figures,
    with_preset,
)
from unshuffle.options import check_bounds, field_types


def test_help_lists_all_without_importing_torch() -> None:
    program = (
        "import sys; from unshuffle import cli; code = cli.run(['evaluate', '--help']);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for name, words in ((name, entry.summary) for name, entry in EVALUATIONS.items()):
        assert f"  {name} " in done.stdout and words in done.stdout


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_evaluation_can_be_found_and_says_what_it_is(name: str) -> None:
    kind = find_evaluation(name)
    assert issubclass(kind, Evaluation)
    assert kind().preset == "paper" and kind.quick().preset == "quick"
    assert EVALUATIONS[name].summary == (kind.__doc__ or "").partition("\n")[0] != ""


@pytest.mark.parametrize("name", EVALUATIONS)
def test_departures_from_the_paper_are_named(name: str) -> None:
    kind = find_evaluation(name)
    assert kind().departures() == kind(weights="a", seed=3, device="cpu").departures() == []
    assert kind.quick().departures() != []


def test_switches_are_named_as_they_are_given() -> None:
    retrieval = find_evaluation("retrieval")(per_video=True, difficult=False, limit=9)  # type: ignore[call-arg]
    assert sorted(retrieval.departures()) == ["limit 9", "no_difficult", "per_video"]
    assert sorted(retrieval.departures(frozenset({"limit"}))) == ["no_difficult", "per_video"]


@pytest.mark.parametrize(
    ("name", "option", "value", "sentence"),
    [
        ("voc-classification", "crops", 0, "crops is 0, but must be 1 or more"),
        ("voc-detection", "lr", float("nan"), "lr is nan, but must be a finite number"),
        ("voc-segmentation", "limit", -1, "limit is -1, but must be 0 or more"),
        ("retrieval", "top", (1, 0), "top is 0, but must be 1 or more"),
        ("retrieval", "top", (), "top has 0 values, but must have 1 or more"),
        ("finetune", "batch_size", 1, "batch_size is 1, but must be 2 or more"),
        ("rankme", "limit", -1, "limit is -1, but must be 0 or more"),
        ("rankme", "batch_size", 0, "batch_size is 0, but must be 1 or more"),
        ("action", "dropout", (0.5, -0.1), "dropout is -0.1, but must be 0 or more and below 1"),
        ("action", "dropout", (0.5,), "dropout has 1 value, but must have 2 or more and at most 2"),
        ("finetune", "seed", -1, "seed is -1, but must be 0 or more and below 4294967296"),
        ("finetune", "seed", 2**32, "seed is 4294967296, but must be 0 or more and below 4294967296"),
    ],
)
def test_numbers_out_of_bounds_are_refused(name: str, option: str, value: object, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        find_evaluation(name)(**{option: value}).run(Console(quiet=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EVALUATIONS)
def test_the_numbers_of_the_presets_are_within_their_bounds(name: str) -> None:
    kind = find_evaluation(name)
    check_bounds(kind())
    check_bounds(kind.quick())


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_number_has_bounds(name: str) -> None:
    kind = find_evaluation(name)
    for option in fields(kind):
        value = getattr(kind.quick(), option.name)
        numbers = value if isinstance(value, tuple) else (value,)
        literal = get_origin(field_types(kind)[option.name]) is Literal
        if not literal and all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
            negative = tuple(-1 for _ in numbers) if isinstance(value, tuple) else -1
            if numbers:
                with pytest.raises(UserError, match=f"^{option.name} is -1"):
                    check_bounds(replace(kind.quick(), **{option.name: negative}))


@pytest.mark.parametrize("name", ["voc-classification", "voc-detection", "voc-segmentation"])
def test_only_the_papers_protocol_on_whole_image_sets_stands_beside_the_papers(name: str) -> None:
    kind = find_evaluation(name)
    assert kind(seed=7, device="cpu", weights="mine").is_papers() and not kind.quick().is_papers()
    for other in ({"year": 2010}, {"limit": 5}, {"train_set": "some"}, {"test_set": "some"}, {"hidden": 7}):
        assert not kind(**other).is_papers(), other  # type: ignore[arg-type]


def test_rounded() -> None:
    figures = {"a": 33.33333333, "b": {"c": [1.000001, None]}, "n": 7, "s": "x"}
    assert rounded(figures) == {"a": 33.3333, "b": {"c": [1.0, None]}, "n": 7, "s": "x"}


def test_all_tables_are_there() -> None:
    assert [len(published(table)) for table in "12345"] == [4, 12, 8, 9, 7]
    assert sum(len(figures) for table in "1234" for figures in published(table).values()) == 40 + 20 + 14 + 25
    assert published("1")["Büchler et al."]["UCF-101 top1"] == 25.7
    assert published("4")["Büchler et al."] == {"classification": 74.2, "detection": 52.8, "segmentation": 42.8}
    assert "linear" not in published("2")["NAT"]
    assert published("5")["S&T"] == {"classification": 69.8, "UCF-101": 54.2}
    assert published("5")["S+T+P"]["classification"] == published("4")["Büchler et al."]["classification"]


def test_our_figures_stand_above_the_published_ones() -> None:
    output = StringIO()
    columns = {"top 1": "VOC 2007 top1"}
    ours = {"this network": {"top 1": 33.333, "mine": 1.0}, "chance": {"mine": 0.5}}
    Console(file=output, width=200).print(published_table("1", ours, "VOC 2007", columns))
    lines = [line.split() for line in output.getvalue().splitlines() if line.strip()]
    assert lines[0] == ["[%]", "top", "1", "mine"] and lines[1] == ["this", "network", "33.3", "1.0"]
    assert lines.pop(2) == ["chance", "-", "0.5"]
    assert " ".join(lines[2]) == "published, VOC 2007"
    assert lines[3] == ["Random", "17.6", "-"] and len(lines) == 7


def test_a_table_that_the_paper_does_not_have() -> None:
    assert published_table("3", {"this network": {"top 1": 1.0}}, "UCF-101").row_count == 1


def test_the_count_is_exact_and_the_list_is_not_endless() -> None:
    assert skipped_figures([]) == {"count": 0, "files": []}
    figures = skipped_figures([(f"{number}.png", "bad") for number in range(250)])
    assert figures["count"] == 250 and len(figures["files"]) == LISTED
    assert figures["files"][7] == {"file": "7.png", "reason": "bad"}


@pytest.mark.parametrize("in_out", [True, False])
def test_what_is_left_out_is_told_and_listed(in_out: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, cache = (tmp_path / "out" if in_out else None), tmp_path / "cache"
    data = LabelledDataset("photos", FileSource(tmp_path, [], "images"), [], [], [], "images")
    note_skipped(Console(), data, "test images", out, cache)
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())
    skipped = [(f"[{number}].png", "bad") for number in range(5)]
    note_skipped(Console(), replace(data, skipped=skipped, ignored={".txt": 2}), "test images", out, cache)
    file = tmp_path / "out" / "skipped-test-images.csv" if in_out else skipped_file("photos", cache)
    assert capsys.readouterr().out.splitlines() == [
        "test images: 2 others ignored (2 .txt)",
        "test images: 5 skipped",
        "  skipped [0].png, [1].png, [2].png and 2 more: bad",
        f"  all are listed in {file}",
    ]
    assert len(file.read_text().splitlines()) == 6


def test_a_class_without_a_file_is_refused() -> None:
    check_covered([0, 1, 1], [0, 1], ["a", "b", "c"], "image")
    with pytest.raises(UserError, match="the class b has no readable image"):
        check_covered([0, 2], [0, 1, 2], ["a", "b", "c"], "image")


@pytest.mark.parametrize(
    ("labels", "output"),
    [
        ([0] * 10 + [1] * 10, ""),
        ([0] * 9 + [1] * 9, "note: only 18 images for 2 classes, 9 of each: little to train on\n"),
        ([1] * 3, "note: only 3 images for 2 classes, 0 to 3 of each: little to train on\n"),
    ],
)
def test_a_note_about_few_files(labels: list[int], output: str, capsys: pytest.CaptureFixture[str]) -> None:
    note_few(Console(), labels, ["a", "b"], "images")
    assert capsys.readouterr().out == output


def test_a_note_about_shared_files(capsys: pytest.CaptureFixture[str]) -> None:
    note_shared(Console(), 0)
    assert capsys.readouterr().out == ""
    note_shared(Console(), 3)
    assert "3 of the test files are training files too" in capsys.readouterr().out


def test_the_presets_of_an_evaluation() -> None:
    kind = find_evaluation("linear")
    assert with_preset(kind, {"preset": "paper"}) == (kind(), None)
    assert with_preset(kind, {"preset": "quick"}) == (kind.quick(), None)
    assert with_preset(kind, {}) == (kind(preset="auto"), None), "there is no data to fit it to"


@pytest.mark.parametrize(
    ("name", "sets", "iterations"),
    [
        ("voc-classification", {"trainval": 50}, 798),
        ("voc-classification", {"trainval": 3}, 400),
        ("voc-detection", {"trainval": 50}, 399),
    ],
)
def test_voc_schedules_fit_the_image_set(
    name: str, sets: dict[str, int], iterations: int, devkit: Callable[..., Path]
) -> None:
    root = devkit(**sets)
    options, choice = with_preset(find_evaluation(name), {"voc": root})
    assert options.iterations == iterations  # type: ignore[attr-defined]
    assert choice == f"{iterations} iterations for {sets['trainval']} training images"
    assert with_preset(find_evaluation(name), {"voc": root, "iterations": 7})[1] is None
