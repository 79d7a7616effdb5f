import pytest
from rich.console import Console

from unshuffle.evaluation.skips import LISTED, skipped_figures, tell_skipped


def test_the_count_is_exact_and_the_list_is_not_endless() -> None:
    assert skipped_figures([]) == {"count": 0, "files": []}
    figures = skipped_figures([(f"{number}.png", "bad") for number in range(250)])
    assert figures["count"] == 250 and len(figures["files"]) == LISTED
    assert figures["files"][7] == {"file": "7.png", "reason": "bad"}


def test_the_first_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    tell_skipped(Console(), [], "images")
    assert capsys.readouterr().out == ""
    tell_skipped(Console(), [(f"[{number}].png", "bad") for number in range(5)], "images")
    said = capsys.readouterr().out.splitlines()
    assert said == ["images: 5 skipped", *(f"  [{n}].png: bad" for n in range(3)), "  and 2 more; --json lists them"]
