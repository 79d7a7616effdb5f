from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.convergence import first_reached, speed
from unshuffle.config import MonitorConfig
from unshuffle.evaluation.monitor import build_retrieval_monitor
from unshuffle.models.weights import load_backbone
from unshuffle.runs.run import Run


def test_where_a_curve_reaches_a_level() -> None:
    xs, ys = [0, 10, 20, 40], [5, 3, 7, 9]
    assert first_reached(xs, ys, 5) == 0
    assert first_reached(xs, ys, 6) == 17.5
    assert first_reached(xs, ys, 8) == 30
    assert first_reached(xs, ys, 9.5) is None


def test_speed_is_measured_at_what_all_reach() -> None:
    def curve(*top1: float, cost: int) -> list[dict[str, float]]:
        return [
            {"iteration": 10 * n, "forward_passes": cost * n, "forward_passes_shared_backbone": n, "top1": score}
            for n, score in enumerate(top1)
        ]

    speeds = speed({"fast": curve(10, 30, 20, cost=100), "slow": curve(10, 15, 20, cost=20)})
    assert speeds["fast"]["level"] == speeds["slow"]["level"] == 20
    assert (speeds["fast"]["iteration_to_level"], speeds["slow"]["iteration_to_level"]) == (5, 20)
    assert (speeds["fast"]["forward_passes_to_level"], speeds["slow"]["forward_passes_to_level"]) == (50, 40)
    assert (speeds["fast"]["best_top1"], speeds["fast"]["last_top1"], speeds["fast"]["mean_top1"]) == (30, 20, 20)


def test_of_the_monitor(run: Run, uniform_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("convergence", runs=(run.folder, uniform_run.folder))
    with_policy = [row for row in analysis.rows if row["run"] == "policy (reinforce)"]
    assert [row["iteration"] for row in with_policy] == [0, 6, 12]
    assert [row["top1"] for row in with_policy] == [entry["top1"] for entry in run.metrics("monitor")]
    assert with_policy[-1]["forward_passes"] == 24 + 7 * 6 * (6 + 5) / 4
    assert analysis.rows[-1]["forward_passes"] == 24
    assert len(analysis.figure().axes) == 3


def test_rollouts_count_as_the_policys_cost(pair_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("convergence", runs=(pair_run.folder,))
    # up to iteration 6: 12 batches of training, 3 times 3 rollouts of 2 iterations on 2 tasks, 4 + 9 validations
    assert analysis.rows[1]["forward_passes"] == 12 + 36 + 13 * 6 * (6 + 5) / 4
    assert analysis.rows[1]["forward_passes_shared_backbone"] == 12 + 36 + 13 * 6 * 2 / 4
    assert "including those of the policy's validations and rollouts" in analysis.statement


def test_a_folder_may_be_called_anything(copied: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    folder = copied.folder.rename(tmp_path / "a $\\frac$ \udcff")
    paths = analyse("convergence", runs=(folder,)).write(tmp_path / "out")
    assert r"a $\frac$ \udcff (reinforce)" in paths[2].read_text(encoding="utf-8")


def test_of_checkpoints(run: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for side in ("gallery", "queries"):
        for name in ("a", "b"):
            (tmp_path / side / name).mkdir(parents=True)
            for number in range(3):
                pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / side / name / f"{number}.png")
    folders = {"gallery": tmp_path / "gallery", "queries": tmp_path / "queries"}
    analysis = analyse("convergence", runs=(run.folder,), device="cpu", **folders)
    assert [row["iteration"] for row in analysis.rows] == [4, 8, 12]
    trained = build_retrieval_monitor(replace(run.config, monitor=MonitorConfig(**folders)))
    assert trained is not None and analysis.rows[-1]["top1"] == trained(load_backbone(run.folder))["top1"]
    analysis.figure()


def test_mistakes(copied: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be given together"):
        analyse("convergence", runs=(copied.folder,), gallery=tmp_path)
    copied.metrics_file.write_text(copied.metrics_file.read_text().replace('"top1"', '"top_1"'))  # as without labels
    assert any("crops_top1" in entry for entry in copied.metrics("monitor"))
    with pytest.raises(ValueError, match="has no labelled monitor: give class folders"):
        analyse("convergence", runs=(copied.folder,))
