from pathlib import Path

import pytest

from unshuffle.config import demo
from unshuffle.config_file import write_config
from unshuffle.errors import UserError
from unshuffle.report.subjects import check_page, default_file, find_subjects, find_tables


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_config(demo(), folder / "config.yaml")
    return folder


def test_a_run_has_the_name_of_its_folder(tmp_path: Path) -> None:
    (subject,) = find_subjects([make_run(tmp_path / "mine")])
    assert (subject.name, subject.arm, subject.colour) == ("mine", "mine", "c0")
    assert default_file([tmp_path / "mine"]) == tmp_path / "mine" / "report.html"


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / place / "demo") for place in ("a", "b")]
    assert [one.name for one in find_subjects(folders)] == ["a/demo (reinforce)", "b/demo (reinforce)"]
    assert default_file(folders) == Path("report.html")


def test_seeds_of_an_arm_share_a_colour(tmp_path: Path) -> None:
    for place in ("S/seed-0", "S/seed-1", "T/seed-0"):
        make_run(tmp_path / place)
    (tmp_path / "table.csv").write_text("arm\nS\n")
    subjects = find_subjects([tmp_path])
    assert [one.name for one in subjects] == ["S/seed-0", "S/seed-1", "T/seed-0"]
    assert [one.arm for one in subjects] == ["S", "S", "T"]
    assert [one.colour for one in subjects] == ["c0", "c0", "c1"]
    assert find_tables([tmp_path]) == [tmp_path / "table.csv"]


def test_arms_have_their_names_and_order(tmp_path: Path) -> None:
    for place in ("S-and-T/seed-0", "S/seed-0", "S/seed-1", "A/seed-0"):
        make_run(tmp_path / place)
    (tmp_path / "ablation.yaml").write_text("arms: {S&T: {}, S: {}}")
    subjects = find_subjects([tmp_path])
    assert [one.name for one in subjects] == ["S&T/seed-0", "S/seed-0", "S/seed-1", "A/seed-0"]
    assert [one.arm for one in subjects] == ["S&T", "S", "S", "A"]


def test_arms_of_two_ablations_are_told_apart(tmp_path: Path) -> None:
    for place in ("one/S/seed-0", "two/S/seed-0", "single"):
        make_run(tmp_path / place)
    subjects = find_subjects([tmp_path / "one", tmp_path / "single", tmp_path / "two"])
    assert [one.name for one in subjects] == ["single", "one/S/seed-0", "two/S/seed-0"]
    assert [one.arm for one in subjects] == ["single", "one/S", "two/S"]
    assert len({one.colour for one in subjects}) == 3


def test_a_run_that_holds_runs_is_itself_the_subject(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    make_run(tmp_path / "run" / "inner")
    (tmp_path / "run" / "table.csv").write_text("not ours\n")
    assert [one.name for one in find_subjects([tmp_path / "run"])] == ["run"]
    assert find_tables([tmp_path / "run"]) == []


@pytest.mark.parametrize("place", ["nothing", "empty"])
def test_what_is_no_run_is_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is not a run folder"):
        find_subjects([tmp_path / place])


def test_only_reports_are_written_over(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check_page(page)
    page.write_text('<!doctype html><meta name="generator" content="unshuffle 0.1.0">')
    check_page(page)
    page.write_text("my thesis")
    with pytest.raises(UserError, match="not a report"):
        check_page(page)
    with pytest.raises(UserError, match="is a folder"):
        check_page(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        check_page(tmp_path / "nowhere" / "page.html")
