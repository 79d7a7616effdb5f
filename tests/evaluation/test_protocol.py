import subprocess
import sys

import pytest

from unshuffle.evaluation.protocol import EVALUATIONS, Evaluation, describe_evaluations, find_evaluation, rounded


def test_help_lists_all_without_importing_torch() -> None:
    program = (
        "import sys; from unshuffle import cli; code = cli.run(['evaluate', '--help']);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for name, words in describe_evaluations().items():
        assert f"  {name} " in done.stdout and words in done.stdout


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_evaluation_can_be_found_and_says_what_it_is(name: str) -> None:
    kind = find_evaluation(name)
    assert issubclass(kind, Evaluation)
    assert kind().preset == "paper" and kind.quick().preset == "quick"
    assert describe_evaluations()[name] == (kind.__doc__ or "").partition("\n")[0] != ""


@pytest.mark.parametrize("name", EVALUATIONS)
def test_departures_from_the_paper_are_named(name: str) -> None:
    kind = find_evaluation(name)
    assert kind().departures() == kind(weights="a", seed=3, device="cpu").departures() == []
    assert kind.quick().departures() != []


@pytest.mark.parametrize("name", ["voc-classification", "voc-detection", "voc-segmentation"])
def test_only_whole_image_sets_stand_beside_the_papers(name: str) -> None:
    kind = find_evaluation(name)
    assert kind(hidden=7).has_usual_images()  # type: ignore[call-arg, attr-defined]
    for other in ({"year": 2010}, {"limit": 5}, {"train_set": "some"}, {"test_set": "some"}):
        assert not kind(**other).has_usual_images()  # type: ignore[arg-type, attr-defined]


def test_rounded() -> None:
    figures = {"a": 33.33333333, "b": {"c": [1.000001, None]}, "n": 7, "s": "x"}
    assert rounded(figures) == {"a": 33.3333, "b": {"c": [1.0, None]}, "n": 7, "s": "x"}
