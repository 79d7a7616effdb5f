from pathlib import Path

import pytest

from unshuffle.config import demo
from unshuffle.errors import UserError
from unshuffle.options import merge, write_config
from unshuffle.report.charts import run_colours
from unshuffle.report.page import default_file
from unshuffle.runs.folders import (
    differing,
    find_runs,
    find_tables,
    folder_name,
    read_table,
    run_labels,
    short_names,
)
from unshuffle.runs.run import Run


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_config(demo(), folder / "config.yaml")
    return folder


def test_a_run_has_the_name_of_its_folder(tmp_path: Path) -> None:
    (named,) = find_runs([make_run(tmp_path / "mine")])
    assert (named.name, named.arm) == ("mine", "mine")
    assert default_file([tmp_path / "mine"]) == tmp_path / "mine" / "report.html"


def test_a_run_that_was_killed_as_it_began_is_none(tmp_path: Path) -> None:
    make_run(tmp_path / "begun" / ".starting")
    with pytest.raises(UserError):
        find_runs([tmp_path])


def test_runs_of_the_same_name_get_distinct_names(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / path / "demo") for path in ("a", "b")]
    assert [named.name for named in find_runs(folders)] == ["a/demo (reinforce)", "b/demo (reinforce)"]
    assert default_file(folders) == Path("report.html")


def test_seeds_of_an_arm_share_a_colour(tmp_path: Path) -> None:
    for path in ("S/seed-0", "S/seed-1", "T/seed-0"):
        make_run(tmp_path / path)
    (tmp_path / "table.csv").write_text("arm\nS\n")
    runs = find_runs([tmp_path])
    assert [named.name for named in runs] == ["S/seed-0", "S/seed-1", "T/seed-0"]
    assert [named.arm for named in runs] == ["S", "S", "T"]
    assert run_colours(runs) == ["c0", "c0", "c1"]
    assert find_tables([tmp_path]) == [tmp_path / "table.csv"]


def test_arms_have_their_names_and_order(tmp_path: Path) -> None:
    for path in ("S-and-T/seed-0", "S/seed-0", "S/seed-1", "A/seed-0"):
        make_run(tmp_path / path)
    (tmp_path / "ablation.yaml").write_text("arms: {S&T: {}, S: {}}")
    runs = find_runs([tmp_path])
    assert [named.name for named in runs] == ["S&T/seed-0", "S/seed-0", "S/seed-1", "A/seed-0"]
    assert [named.arm for named in runs] == ["S&T", "S", "S", "A"]


def test_arms_of_two_ablations_get_distinct_names(tmp_path: Path) -> None:
    for path in ("one/S/seed-0", "two/S/seed-0", "single"):
        make_run(tmp_path / path)
    runs = find_runs([tmp_path / "one", tmp_path / "single", tmp_path / "two"])
    assert [named.name for named in runs] == ["single", "one/S/seed-0", "two/S/seed-0"]
    assert [named.arm for named in runs] == ["single", "one/S", "two/S"]
    assert len(set(run_colours(runs))) == 3


def test_a_run_that_contains_runs_is_itself_the_run(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    make_run(tmp_path / "run" / "inner")
    (tmp_path / "run" / "table.csv").write_text("not ours\n")
    assert [named.name for named in find_runs([tmp_path / "run"])] == ["run"]
    assert find_tables([tmp_path / "run"]) == []


@pytest.mark.parametrize("path", ["nothing", "empty"])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is not a run folder"):
        find_runs([tmp_path / path])


def test_short_names_have_as_few_components_as_needed(tmp_path: Path) -> None:
    for name in ("a/run", "b/run", "c/other"):
        (tmp_path / name).mkdir(parents=True)
    assert short_names([tmp_path / "a/run", tmp_path / "c/other"]) == ["run", "other"]
    assert short_names([tmp_path / "a/run", tmp_path / "b/run"]) == ["a/run", "b/run"]
    assert short_names([str(tmp_path / "a/run"), "random:tiny"]) == ["run", "random:tiny"]
    assert short_names([]) == []
    with pytest.raises(ValueError, match="twice"):
        short_names(["random", "random"])


def test_labels_of_runs_are_distinct(run: Run, copied: Run, tmp_path: Path) -> None:
    assert run_labels([run, copied]) == ["policy (reinforce)", "copied (reinforce)"]
    other = Run(copied.folder.rename(tmp_path / "policy"))
    assert run_labels([run, other]) == [f"{each.folder.parent.name}/policy (reinforce)" for each in (run, other)]
    with pytest.raises(ValueError, match="the same path is given twice"):
        run_labels([run, run])


def test_labels_name_the_sampler_unless_the_folder_does_or_there_is_none(tmp_path: Path) -> None:
    changes: dict[str, dict[str, object]] = {
        "control": {"policy": {"inverse": True}},
        "uniform": {"policy": {"sampler": "uniform"}},
        "rotation": {"tasks": "R"},
    }
    for name, values in changes.items():
        (tmp_path / name).mkdir()
        write_config(merge(demo(), values), tmp_path / name / "config.yaml")
    assert run_labels([Run(tmp_path / name) for name in changes]) == [
        "control (inverse reinforce)",
        "uniform",
        "rotation",
    ]


def test_folder_names_are_safe_in_shells() -> None:
    assert [folder_name(name) for name in ("S&T", "S+T+P", "a b/c", "ä.1")] == ["S-and-T", "S+T+P", "a_b_c", "_.1"]
    for name in ("", "..", ".git", "-x", "&"):
        with pytest.raises(UserError, match="cannot name an arm"):
            folder_name(name)


@pytest.mark.parametrize("text", ["", "arm\nS\n", "name,price\ntea,cheap\n", "arm,seeds,error.x mean\nS,1,0.5\nT,1\n"])
def test_a_file_that_is_no_table_gives_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    assert read_table(tmp_path / "table.csv") == []


def test_differing_names_only_what_differs() -> None:
    configs = [{"seed": 0, "out": "a", "tasks": "S"}, {"seed": 1, "out": "b", "tasks": "S"}]
    assert differing(configs) == ["seed"]
    assert differing(configs[:1]) == []
