from pathlib import Path
from typing import Any

import pytest

from unshuffle.ablation.ablation import make_plan
from unshuffle.ablation.plan import Plan
from unshuffle.config import preset_config
from unshuffle.errors import UserError
from unshuffle.options import merge, write_config


def plan(out: Path, arms: dict[str, Any], seeds: Any = 1, **evaluations: Any) -> Plan:
    return make_plan(out, preset_config("demo"), arms, seeds, evaluations)


def test_jobs_are_arms_times_seeds_with_their_config(tmp_path: Path) -> None:
    arms = {"a": {"policy": {"sampler": "inverse"}}, "b&c": {"optim": {"backbone": {"lr": 0.5}}}}
    jobs = plan(tmp_path, arms, [3, 5]).jobs
    assert [str(job) for job in jobs] == ["a, seed 3", "b&c, seed 3", "a, seed 5", "b&c, seed 5"]
    expected = merge(preset_config("demo"), {"seed": 5, "out": str(tmp_path / "b-and-c" / "seed-5"), **arms["b&c"]})
    assert jobs[3].config == expected


def test_a_number_of_seeds_counts_from_the_configs_own(tmp_path: Path) -> None:
    assert make_plan(tmp_path, merge(preset_config("demo"), {"seed": 7}), {}, 3, {}).seeds == (7, 8, 9)
    assert make_plan(tmp_path, preset_config("demo"), {}, [4], {}).seeds == (4,)


def test_a_plan_is_read_back(tmp_path: Path) -> None:
    arms = {"a": {"init": Path("w"), "optim": {"milestones": (1, 2)}}}
    written = plan(tmp_path, arms, 2, ranks={"evaluation": "rankme", "images": tmp_path})
    written.write()
    assert Plan.read(tmp_path) == written
    assert Plan.read(tmp_path).jobs[0].config == written.jobs[0].config


@pytest.mark.parametrize(
    ("arms", "seeds", "sentence"),
    [
        ({}, 1, "one arm and one seed"),
        ({"a": {}}, [], "one arm and one seed"),
        ({"a": {}}, [1, 2, 1], "a seed is given twice"),
        ({"s": {}, "S": {}}, 1, "'S' and 's' would share a folder"),
        ({"logs": {}}, 1, "would share a folder"),
        ({"a": {"polcy": {}}}, 1, "arm a: unknown key polcy"),
        ({"a": {"seed": 3}}, 1, "arm a: seed cannot be changed by an arm"),
        ({"a": {"spatial": {"grid": 1}}}, 1, "arm a: spatial.grid is 1"),
    ],
)
def test_what_cannot_work_is_refused(arms: dict[str, Any], seeds: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        plan(tmp_path, arms, seeds).check()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds other files and no ablation"):
        plan(tmp_path, {"a": {}}).check()
    with pytest.raises(UserError, match="is a file"):
        plan(tmp_path / "thesis.tex", {"a": {}}).check()


def test_a_run_that_was_started_with_another_config_is_refused(tmp_path: Path) -> None:
    started = plan(tmp_path, {"a": {}})
    started.write()
    job = started.jobs[0]
    job.folder.mkdir(parents=True)
    write_config(job.config, job.run.config_file)
    started.check()
    plan(tmp_path, {"a": {"log": {"train_every": 3}}}).check()  # changes nothing of what is computed
    with pytest.raises(UserError, match=r"seed-0 was started with another optim\.iterations"):
        plan(tmp_path, {"a": {"optim": {"iterations": 3}}}).check()
