import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import EVALUATIONS, Evaluation, find_evaluation, rounded


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
        ("voc-classification", "crops", 0, "--crops is 0, but must be above 0"),
        ("voc-detection", "lr", float("nan"), "--lr is nan, but must be above 0"),
        ("voc-segmentation", "limit", -1, "--limit is -1, but must be above 0"),
        ("retrieval", "top", (1, 0), "--top is 1 0, but must be above 0"),
        ("rankme", "limit", -1, "--limit is -1, but must not be negative"),
        ("rankme", "batch_size", 0, "--batch_size is 0, but must be above 0"),
        ("action", "dropout", (0.5, -0.1), "--dropout is 0.5 -0.1, but must not be negative"),
        ("finetune", "seed", -1, "--seed is -1, but must not be negative"),
        ("finetune", "seed", 2**32, "--seed is 4294967296, but must be below"),
    ],
)
def test_numbers_that_make_no_sense(name: str, option: str, value: object, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        find_evaluation(name)(**{option: value}).run(Console(quiet=True))  # type: ignore[arg-type]


def complaint(evaluation: Evaluation) -> str:
    try:
        evaluation.check_numbers()
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", EVALUATIONS)
def test_the_numbers_of_the_presets_make_sense(name: str) -> None:
    kind = find_evaluation(name)
    assert [complaint(kind()), complaint(kind.quick())] == ["", ""]
    assert complaint(replace(kind.quick(), seed=-1)) != ""


@pytest.mark.parametrize("name", ["voc-classification", "voc-detection", "voc-segmentation"])
def test_only_whole_image_sets_stand_beside_the_papers(name: str) -> None:
    kind = find_evaluation(name)
    assert kind(hidden=7).uses_paper_data()  # type: ignore[call-arg, attr-defined]
    for other in ({"year": 2010}, {"limit": 5}, {"train_set": "some"}, {"test_set": "some"}):
        assert not kind(**other).uses_paper_data()  # type: ignore[arg-type, attr-defined]


def test_rounded() -> None:
    figures = {"a": 33.33333333, "b": {"c": [1.000001, None]}, "n": 7, "s": "x"}
    assert rounded(figures) == {"a": 33.3333, "b": {"c": [1.0, None]}, "n": 7, "s": "x"}
