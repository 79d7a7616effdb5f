from dataclasses import replace
from pathlib import Path

import pytest

from unshuffle.ablation.arms import PAPER_ARMS, build_evaluation, check_data, find_arms, find_evaluations
from unshuffle.config import check, demo, small
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import published
from unshuffle.evaluation.retrieval import Retrieval
from unshuffle.options import merge


def test_the_arms_are_those_of_the_papers_table() -> None:
    assert list(PAPER_ARMS) == list(published("5"))
    assert list(find_arms([], demo())) == list(PAPER_ARMS)
    assert find_arms(["S&T", "S"], demo()) == {
        "S&T": {"tasks": "S&T", "policy": {"sampler": "uniform"}},
        "S": {"tasks": "S", "policy": {"sampler": "uniform"}},
    }


def test_the_policy_of_an_arm_is_the_configs_sampler_or_rollouts() -> None:
    assert find_arms(["S+T+P"], demo())["S+T+P"] == {"tasks": "S+T"}, "with REINFORCE, the sampler of the config"
    values = find_arms(["S+T+P"], small())["S+T+P"]
    assert merge(small(), values).policy == replace(small().policy, sampler="rollouts")
    check(merge(small(), values))


@pytest.mark.parametrize(
    ("name", "tasks", "stages"),
    [
        ("S+T+R", "S+T+R", (("spatial", "temporal", "rotation"),)),
        ("S+T+R+P", "S+T+R", (("spatial", "temporal", "rotation"),)),
        ("S+R&T+P", "S+R&T", (("spatial", "rotation"), ("temporal",))),
        ("R", "R", (("rotation",),)),
    ],
)
def test_an_arm_joins_any_tasks(name: str, tasks: str, stages: tuple[tuple[str, ...], ...]) -> None:
    values = find_arms([name], demo())[name]
    assert values.pop("tasks") == tasks
    assert values == ({} if name.endswith("+P") else {"policy": {"sampler": "uniform"}})
    assert merge(demo(), {"tasks": tasks}).stages == stages


def test_own_arms_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("inverse: {policy: {inverse: true}}\nas it is:\n")
    arms = find_arms(["T", str(tmp_path / "mine.yaml")], demo())
    assert arms == {
        "T": {"tasks": "T", "policy": {"sampler": "uniform"}},
        "inverse": {"policy": {"inverse": True}},
        "as it is": {},
    }


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["X"], "there is no arm 'X': join tasks by + or &, with +P at the end for the policy, as in S, S+P, T"),
        (["S+T+S"], "there is no arm 'S+T+S'"),
        (["S+"], "there is no arm 'S+'"),
        (["P"], "there is no arm 'P'"),
        (["R+P"], "arm 'R+P' has no ordering task, so there is nothing for the policy to sample"),
        (["no.yaml"], "there is no arms file"),
        (["a.yaml"], "a must"),
    ],
)
def test_an_unknown_arm(names: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("a: 1\n")
    with pytest.raises(UserError, match=sentence.replace("+", r"\+")):
        find_arms(names, demo())


def test_evaluations_take_the_common_options_that_they_have(tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text("objects: {evaluation: retrieval, voc: devkit}\nfast: {evaluation: linear, c: 1}\n")
    common = {"preset": "quick", "train": "a", "test": "b", "voc": "v"}
    evaluations = find_evaluations(["retrieval", "voc-classification", "rankme", str(file)], common)
    assert evaluations == {
        "retrieval": {"preset": "quick", "train": "a", "test": "b"},
        "voc-classification": {"preset": "quick", "voc": "v"},
        "rankme": {"preset": "quick"},
        "objects": {"preset": "quick", "evaluation": "retrieval", "voc": "devkit"},
        "fast": {"preset": "quick", "train": "a", "test": "b", "evaluation": "linear", "c": 1},
    }
    with pytest.raises(UserError, match="there is no evaluation 'x'"):
        find_evaluations(["x"], common)


def test_an_evaluation_is_built_on_its_preset(tmp_path: Path) -> None:
    values = {"evaluation": "retrieval", "preset": "quick", "train": "a", "top": [1, 3]}
    assert build_evaluation("mine", values) == Retrieval(preset="quick", limit=500, train="a", top=(1, 3))
    with pytest.raises(UserError, match=r"evaluation mine: unknown key tpo \(did you mean top\?\)"):
        build_evaluation("mine", {"evaluation": "retrieval", "tpo": 1})
    with pytest.raises(UserError, match="evaluation mine has no data: give test or train or voc"):
        check_data("mine", Retrieval())
    with pytest.raises(UserError, match="nowhere does not exist"):
        check_data("mine", Retrieval(train=tmp_path, test=Path("nowhere")))
