from pathlib import Path
from typing import Any

import pytest

from unshuffle.ablation import job as job_module
from unshuffle.ablation.ablation import ablate, make_plan
from unshuffle.ablation.job import run_job
from unshuffle.ablation.plan import Job
from unshuffle.config import preset_config
from unshuffle.evaluation.retrieval import Retrieval
from unshuffle.options import merge


def test_a_job_that_was_killed_before_it_had_a_config_starts_afresh(tmp_path: Path, tiny: dict[str, Any]) -> None:
    out = tmp_path / "out"
    (out / "S" / "seed-0" / "permutations").mkdir(parents=True)
    (out / "ablation.yaml").write_text("{}")
    assert not ablate(out, arms=["S"], **tiny).failures


def test_an_evaluation_that_fails_is_made_at_the_next_start(
    tmp_path: Path, tiny: dict[str, Any], labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"train": str(labelled), "test": str(labelled)}
    evaluations = {"first": {"evaluation": "retrieval", **data}, "second": {"evaluation": "retrieval", **data}}
    calls, run = [], Retrieval.run

    def once(self: Retrieval, console: Any) -> Any:
        calls.append(self.out)
        if len(calls) == 1:
            raise RuntimeError("a cable\nwas pulled")
        return run(self, console)

    monkeypatch.setattr(Retrieval, "run", once)
    ablation = ablate(tmp_path / "out", arms=["S"], evaluations=evaluations, **tiny)
    assert ablation.failures == {"S, seed 0": "evaluation first: RuntimeError: a cable was pulled"}
    assert "second.top1" in ablation.figures["S"][0] and "first.top1" not in ablation.figures["S"][0]
    assert "Traceback" in (tmp_path / "out" / "logs" / "S-seed-0.log").read_text()
    monkeypatch.setattr(job_module, "_train", None)  # would fail if it were called
    ablation = ablate(tmp_path / "out", arms=["S"], evaluations=evaluations, **tiny)
    assert not ablation.failures and "first.top1" in ablation.figures["S"][0]
    assert len(calls) == 3


def test_a_job_returns_its_error_in_one_line_and_logs_it(tmp_path: Path, tiny: dict[str, Any]) -> None:
    arms = {"broken": {"tasks": "T", "images": str(tmp_path)}}
    plan = make_plan(tmp_path / "out", merge(preset_config("demo"), tiny), arms, 1, {})
    plan.write()
    job = Job(plan, "broken", 0)
    sentence = run_job(job)
    assert sentence is not None and "\n" not in sentence
    assert sentence in job.log.read_text(encoding="utf-8").replace("\n", " ") and not job.is_trained
