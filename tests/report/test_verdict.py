"""Whether the features got better: the sentences against metrics that are written by hand."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unshuffle.config import Config
from unshuffle.options import merge, write_config
from unshuffle.report.verdict import Measure, feature_measures, judge_features
from unshuffle.runs.run import Run

OWN = {"crops_chance": 0.5, "crops_queries": 400}


@pytest.fixture
def written(tmp_path: Path, tiny_config: Callable[..., Config]) -> Callable[..., Run]:
    """A function that writes a run with these figures before and after training, by default as long as its preset."""

    def write(
        before: dict[str, float], after: dict[str, float], error: float = 0.3, iterations: int = 400, **changes: Any
    ) -> Run:
        changes = {"optim": {"iterations": iterations}, **changes}
        write_config(merge(tiny_config(out=tmp_path), changes), tmp_path / "config.yaml")
        lines: list[dict[str, Any]] = []
        for iteration, figures in ((0, before), (iterations, after)):
            common = {"iteration": iteration, "seconds": 1.0}
            wrong = {"task": "spatial", "error": error if iteration else 0.8, "chance": 0.8}
            lines += [{**common, "kind": "monitor", **figures}, {**common, "kind": "validation", **wrong}]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Run(tmp_path)

    return write


def own(top1: float, rank: float = 50.0) -> dict[str, float]:
    return {"crops_top1": top1, **OWN, "own_rankme": rank}


def test_better_on_own_data(written: Callable[..., Run]) -> None:
    verdict = judge_features(written(own(20), own(35, 61.3)))
    assert verdict is not None and verdict.change == "better"
    assert verdict.sentences == [
        "The features got better: two crops of one held-out image find each other in 35.0 % of the cases "
        "(20.0 % before training, chance 0.5 %); the effective rank of the features is 61.3 (50.0 before training)."
    ]


def test_a_change_within_the_noise_is_none(written: Callable[..., Run]) -> None:
    run = written(own(20), own(25))
    (crops, rank) = feature_measures(run)
    assert crops.noise == pytest.approx(2 * ((20 * 80 + 25 * 75) / 400) ** 0.5) and crops.change == "level"
    assert rank.chance is None and rank.noise == 0
    verdict = judge_features(run)
    assert verdict is not None and verdict.change == "level"
    first, noise, advice = verdict.sentences
    assert first.startswith("The features did not get measurably better: two crops")
    assert noise == "Differences of up to 5.9 percentage points for crops are within the noise."
    assert "The pretext tasks were learned" in advice and "--tasks S+T+I" in advice and "--init" in advice


def test_what_to_do_if_a_task_is_at_chance(written: Callable[..., Run]) -> None:
    verdict = judge_features(written(own(20), own(8), error=0.79))
    assert verdict is not None and verdict.change == "worse"
    assert verdict.sentences[0].startswith("The features got worse")
    assert verdict.sentences[-1].startswith(
        "The spatial task has learned little so far: train longer (--resume --iterations, now 400)"
    )


def test_a_run_shorter_than_its_preset_should_be_longer(written: Callable[..., Run]) -> None:
    verdict = judge_features(written(own(20), own(20), iterations=20))
    assert verdict is not None and verdict.sentences[-1] == (
        "The run had 20 iterations; the preset demo has 400: train longer "
        "(--resume --iterations 400) before you judge it."
    )


def test_instance_discrimination_is_not_proposed_twice(written: Callable[..., Run]) -> None:
    for tasks in ("S+I", "S&T"):
        verdict = judge_features(written(own(20), own(20), tasks=tasks))
        assert verdict is not None and "+I)" not in verdict.sentences[-1]


def test_weights_to_start_from_are_not_proposed_twice(written: Callable[..., Run]) -> None:
    verdict = judge_features(written(own(20), own(20), init="weights.safetensors"))
    assert verdict is not None and "--init" not in verdict.sentences[-1]


def test_collapse_is_said(written: Callable[..., Run]) -> None:
    verdict = judge_features(written(own(20), own(19, 12.0)))
    assert verdict is not None
    assert any("The effective rank fell from 50.0 to 12.0, a sign of collapse" in text for text in verdict.sentences)


def test_labels_decide_where_there_are_some(written: Callable[..., Run]) -> None:
    labelled = {"chance": 10.0, "queries": 300}
    run = written({**own(20), "top1": 30.0, **labelled}, {**own(8), "top1": 60.0, **labelled})
    verdict = judge_features(run)
    assert verdict is not None and verdict.change == "better"
    assert verdict.sentences == [
        "The features got better: the nearest neighbours of labelled images have their class in 60.0 % of the cases "
        "(30.0 % before training, chance 10.0 %).",
        "Labelled images decide: crops and frames of one sample also share textures, which better features may ignore.",
    ]
    agreed = judge_features(written({**own(20), "top1": 30.0, **labelled}, {**own(20), "top1": 60.0, **labelled}))
    assert agreed is not None and agreed.sentences == verdict.sentences[:1], "nothing to explain"
    assert [measure.key for measure in feature_measures(run)] == ["top1", "crops_top1", "own_rankme"]


def test_images_and_clips_have_each_their_own_noise(written: Callable[..., Run]) -> None:
    clips = {"frames_chance": 2.1, "frames_queries": 96}
    before, after = ({**own(crops), "frames_top1": frames, **clips} for crops, frames in ((20, 12), (25, 8)))
    verdict = judge_features(written(before, after))
    assert verdict is not None and verdict.change == "level"
    remark = "Differences of up to 5.9 percentage points for crops and 8.6 for frames are within the noise."
    assert verdict.sentences[1] == remark
    verdict = judge_features(written(before, {**after, **own(60)}))
    assert verdict is not None and verdict.change == "better"
    assert verdict.sentences[1] == "Differences of up to 8.6 percentage points for frames are within the noise."


def test_checks_that_disagree(written: Callable[..., Run]) -> None:
    clips = {"frames_chance": 0.5, "frames_queries": 400}
    run = written({**own(20), "frames_top1": 40.0, **clips}, {**own(40), "frames_top1": 20.0, **clips})
    verdict = judge_features(run)
    assert verdict is not None and verdict.change == "mixed"
    assert verdict.sentences[0].startswith("The checks disagree on whether the features got better: two crops")
    assert "two frames of one held-out clip find each other in 20.0 %" in verdict.sentences[0]


def test_an_unfinished_run_is_judged_so_far(written: Callable[..., Run]) -> None:
    verdict = judge_features(written(own(20), own(35), optim={"iterations": 4000}))
    assert verdict is not None and verdict.sentences[0].startswith("So far the features got better")


def test_nothing_to_compare(written: Callable[..., Run], tmp_path: Path) -> None:
    run = written(own(20), {})
    assert feature_measures(run) == [] and judge_features(run) is None
    assert judge_features(Run(tmp_path / "nowhere")) is None


def test_an_older_run_without_the_number_of_queries() -> None:
    assert Measure("top1", "", 30.0, 31.0, None, 0.0, 6, "").change == "better"


def test_reading_needs_no_torch() -> None:
    """So that a page can be served beside a training without loading the network's code."""
    code = "import sys, unshuffle.report.verdict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pretrain_prints_it(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    from unshuffle.pretraining import run_pretraining

    run_pretraining(tiny_config(out=tmp_path / "run", tasks="S"))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    verdict = judge_features(Run(tmp_path / "run"))
    assert verdict is not None and set(verdict.sentences) <= set(lines)
    measures = [measure for measure in feature_measures(Run(tmp_path / "run")) if measure.key != "top1"]
    assert [measure.key for measure in measures] == ["crops_top1", "own_rankme"]
    assert "own data before trained chance" in lines
    assert f"{measures[0].title} {measures[0].initial:.1f} {measures[0].trained:.1f} {measures[0].chance:.1f}" in lines
