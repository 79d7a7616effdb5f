"""The page as text: what it contains, and what it must not contain. test_page_in_browser.py tests its scripts."""

import html
import json
import random
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from unshuffle.config import Config
from unshuffle.errors import UserError
from unshuffle.options import merge, write_config
from unshuffle.pretraining import run_pretraining
from unshuffle.report import page as page_module
from unshuffle.report.neighbours import load_neighbours
from unshuffle.report.page import check_page, write_report
from unshuffle.report.verdict import judge_features
from unshuffle.runs.folders import find_runs
from unshuffle.runs.run import Run


class Seen(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = [tag]

    def handle_data(self, data: str) -> None:
        if self._inside[-1:] not in (["script"], ["style"]):
            self.texts.append(data)


def written(folders: list[Path], out: Path) -> str:
    write_report(find_runs(folders), out)
    return out.read_text(encoding="utf-8")


def test_pretrain_writes_it(run: Run) -> None:
    check_page(run.report)
    page = run.report.read_text(encoding="utf-8")
    words = " ".join(Seen(page).texts)
    last = {entry["task"]: entry["error"] for entry in run.metrics("test")}
    for task in ("spatial", "temporal"):
        assert f"{last[task]:.3f}" in words and f"{100 * (1 - last[task]):.1f}" in words
    for said in ("chance", "unshuffle pretrain --preset demo", "raw pixels", "torch 2."):
        assert said in words
    assert len(page) < 5_000_000


def test_an_unfinished_run_says_when_its_error_was_measured(run: Run, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    lines = [entry for entry in run.metrics() if entry["iteration"] < 6]
    copied.metrics_file.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    words = " ".join(" ".join(Seen(written([copied.folder], tmp_path / "report.html")).texts).split())
    assert "test error before trained chance spatial, iteration 0 " in words and "on the pretext test set" in words
    assert "spatial, iteration" not in run.report.read_text(encoding="utf-8")


def test_damage_is_said_and_the_rest_is_shown(run: Run, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    runs = find_runs([copied.folder])
    assert write_report(runs, tmp_path / "report.html") == []
    lines = copied.metrics_file.read_bytes().splitlines()
    copied.metrics_file.write_bytes(b"\n".join([*lines[:9], b"\xff not JSON", *lines[9:], b'{"iteration": 6, "ki']))
    for path in copied.checkpoints.iterdir():
        path.write_text("damaged")
    metrics, checkpoint = write_report(runs, tmp_path / "report.html")
    assert metrics == f"2 of {len(lines) + 2} lines in {copied.metrics_file} are damaged and left out"
    assert checkpoint.startswith(f"{copied.folder} has no pictures: ") and "is damaged" in checkpoint
    assert "raw pixels" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", range(3))
def test_no_wrong_bit_in_the_metrics_is_more_than_a_sentence(run: Run, tmp_path: Path, seed: int) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    shutil.rmtree(copied.checkpoints)  # pictures take long
    good, rng = copied.metrics_file.read_bytes(), random.Random(seed)
    for _ in range(10):
        damaged = bytearray(good)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        copied.metrics_file.write_bytes(damaged)
        assert len(write_report(find_runs([copied.folder]), tmp_path / "report.html")) <= 1


def test_it_is_self_contained(run: Run) -> None:
    page = run.report.read_text(encoding="utf-8")
    for tag, attributes in Seen(page).tags:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, value)
    assert not re.findall(r"url\((?!data:|#|\"?\$)", page.replace("url(#", "url(data:"))
    assert "default-src 'none'" in page


def test_names_stay_text(hostile_run: Run) -> None:
    page = hostile_run.report.read_text(encoding="utf-8")
    seen = Seen(page)
    assert not any(name.startswith("on") for _, attributes in seen.tags for name in attributes)
    assert not any(attributes.get("src") == "x" for _, attributes in seen.tags)
    assert sum("onerror" in text for text in seen.texts) >= 6  # puzzles, the title, the folder, the skipped file ...
    assert "1 file could not be used" in seen.texts
    data = json.loads(html.unescape(re.search(r'type="application/json">(.*?)</script>', page, re.DOTALL)[1]))  # type: ignore[index]
    assert all("<img src=x" in name for name in data["runs"][0]["neighbours"]["names"])


def test_a_run_without_metrics(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    write_config(tiny_config(out=tmp_path), tmp_path / "config.yaml")
    page = written([tmp_path], tmp_path / "report.html")
    assert "There is no validation yet" in page and "Nothing has been logged yet" in page


def test_a_run_that_was_killed(run: Run, tmp_path: Path) -> None:
    """After the second validation, in the middle of a line and of a state, before any checkpoint."""
    killed = shutil.copytree(run.folder, tmp_path / "killed")
    lines = run.metrics_file.read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["iteration"] <= 4]
    (killed / "metrics.jsonl").write_text("\n".join([*kept, lines[-1][:40]]))
    state = killed / "states" / "spatial-00000004.npz"
    state.write_bytes(state.read_bytes()[:300])
    shutil.rmtree(killed / "checkpoints")
    (killed / "backbone.safetensors").unlink()
    page = written([killed], killed / "report.html")
    assert "iteration 4 of 6" in page
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert data["runs"][0]["tasks"]["spatial"]["iterations"] == [0, 2]
    assert data["runs"][0]["tasks"]["temporal"]["iterations"] == [0, 2, 4]
    assert data["runs"][0]["neighbours"] is None


def test_from_the_run_folder_it_is_the_page_that_pretrain_wrote(run: Run, tmp_path: Path) -> None:
    """Except for the time and for JPEGs that were encoded twice."""
    again = written([run.folder], tmp_path / "report.html")

    def plain(page: str) -> str:
        return re.sub(r"data:image/jpeg;base64,[\w+/=]+|Written [-\d: ]+", "", page)

    first, second = plain(run.report.read_text(encoding="utf-8")), plain(again)
    cut = first.index('type="application/json"')
    assert first[: cut - 100] == second[: cut - 100]


def test_the_time_includes_rollouts(run: Run, rollout_run: Run) -> None:
    texts = [" ".join(Seen(each.report.read_text(encoding="utf-8")).texts) for each in (run, rollout_run)]
    assert " s of training and validation" in texts[0] and "rollouts" not in texts[0].split("config.yaml")[0]
    assert " s of training, validation and rollouts" in texts[1]


def test_several_runs_side_by_side(run: Run, uniform_run: Run, tmp_path: Path) -> None:
    page = written([run.folder, uniform_run.folder], tmp_path / "report.html")
    words = " ".join(Seen(page).texts)
    assert "2 runs side by side" in words and "policy.sampler" in words and "No policy" in words


def text_of(run: Run) -> str:
    return " ".join(" ".join(Seen(run.report.read_text(encoding="utf-8")).texts).split())


def test_chance_stands_beside_figures_that_differ_in_it(run: Run, uniform_run: Run, tmp_path: Path) -> None:
    hint = "compare each with its own chance level"
    assert hint in run.report.read_text(), "two tasks and the retrieval"
    other = Run(shutil.copytree(uniform_run.folder, tmp_path / "other"))
    lines = [json.loads(line) for line in other.metrics_file.read_text().splitlines()]
    for line in lines:
        if "crops_chance" in line:
            line["crops_chance"] = 12.5
    other.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(find_runs([run.folder, other.folder]), tmp_path / "two.html")
    page = tmp_path.joinpath("two.html").read_text()
    (chance,) = re.findall(r'<tr class="chance">(.*)</tr>', page)
    (level,) = {entry["crops_chance"] for entry in run.metrics("monitor")}
    assert "<td>0.800</td><td>0.800</td>" in chance, "of 5 permutations each"
    assert f"<td>{min(level, 12.5):.1f} to {max(level, 12.5):.1f}</td>" in chance
    assert "Where chance is a range" in page and "The runs have different chance levels" in page
    write_report(find_runs([run.folder, uniform_run.folder]), tmp_path / "same.html")
    assert "different chance levels" not in tmp_path.joinpath("same.html").read_text()


def test_results_come_first_then_examples_then_the_policy(run: Run) -> None:
    sections = [attributes["id"] for tag, attributes in Seen(run.report.read_text()).tags if tag == "section"]
    assert sections == ["results", "curves", "examples", "neighbours", "policy", "errors", "settings"]


def test_whether_the_features_got_better_is_said(run: Run, hostile_run: Run) -> None:
    for each, words in ((run, "of labelled images"), (hostile_run, "two crops of one held-out image find each other")):
        verdict = judge_features(each)
        assert verdict is not None and words in verdict.sentences[0]
        assert " ".join(verdict.sentences) in text_of(each)
    assert "effective rank of the features (RankMe)" in text_of(hostile_run)


def test_neighbours_say_where_they_come_from(run: Run, hostile_run: Run) -> None:
    labelled, (*_, last) = load_neighbours(run.neighbours), run.metrics("monitor")
    assert labelled is not None
    words = text_of(run)
    assert (
        "8 of the 24 queries on the left, one of each class whatever the result, and their nearest among the" in words
    )
    assert "the 48 images of the gallery after 6 iterations; green: same class as the query; red: another" in words
    shown = f"The first neighbour is right for {labelled['first_right']} of these 8"
    assert f"{shown}; for {last['top1']:.1f} % of all queries." in words
    for each in (run, hostile_run):
        assert "They have no labels, so nothing counts as right or wrong here" in text_of(each)
    assert "Labelled images" not in text_of(hostile_run)


def test_puzzles_have_labels_and_say_how_many_were_recognised(run: Run) -> None:
    words = text_of(run)
    assert words.count("true order") == words.count("restored ") == 6 + 4
    assert re.search(
        r"Spatial: \d+ of 48 puzzles, made of the 6 images kept for this report, were recognised among 5 ", words
    )


def test_tasks_that_order_nothing_have_examples(rotation_run: Run, instance_run: Run) -> None:
    for run, task, names in (
        (rotation_run, "rotation", ("rotated", "turned back")),
        (instance_run, "instance", ("view", "other view", "nearest")),
    ):
        words, pictures = text_of(run), Seen(run.report.read_text(encoding="utf-8")).tags
        assert re.search(rf"{task.capitalize()}: [0-6] of the 6 images kept for this report were recognised\.", words)
        shown = [attributes["alt"] for tag, attributes in pictures if tag == "img" and attributes.get("alt") in names]
        assert shown == list(names) * 6


def test_without_a_policy_there_is_one_sentence(uniform_run: Run) -> None:
    policy = text_of(uniform_run).split(" Policy ")[-1].split(" Error map ")[0]
    assert policy == "No policy: every permutation was equally likely throughout (uniform sampling)."


def test_a_policy_that_never_started(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    run = run_pretraining(merge(tiny_config(out=tmp_path / "never"), {"policy": {"start_below": 0.01}}))
    policy = text_of(run).split(" Policy ")[-1].split(" Error map ")[0]
    assert policy.startswith("Spatial task: The policy never started, as the lowest validation error, 0.")
    assert "Temporal task: The policy never started" in policy and "What it preferred" not in text_of(run)


def test_a_task_that_orders_nothing_has_results_and_no_policy(all_tasks_run: Run, rotation_run: Run) -> None:
    words = [
        " ".join(" ".join(Seen(each.report.read_text(encoding="utf-8")).texts).split())
        for each in (all_tasks_run, rotation_run)
    ]
    for run, text in zip((all_tasks_run, rotation_run), words, strict=True):
        first, *_, last = (entry["error"] for entry in run.metrics("test") if entry["task"] == "rotation")
        before, trained = (f"{100 * (1 - error):.1f} %" for error in (first, last))
        assert (
            f"{trained} of the rotations of held-out images recognised; {before} before training, chance 25.0 %" in text
        )
        assert "Nearest neighbours" in text and f"{last:.3f}" in text
    assert "the temporal task (frames of clips) and the rotation task (rotations of images), with the" in words[0]
    assert "Puzzles are shuffled" in words[0] and "What it preferred and when" in words[0]
    assert "iterations on the rotation task (rotations of images)." in words[1]
    for heading in ("Puzzles", "Policy", "What it preferred", "Error map", "sampler reinforce"):
        assert heading not in words[1].split("config.yaml")[0]


def test_instance_discrimination_in_a_report(instance_run: Run) -> None:
    words = " ".join(" ".join(Seen(instance_run.report.read_text(encoding="utf-8")).texts).split())
    first, *_, last = (entry for entry in instance_run.metrics("test") if entry["task"] == "instance")
    chance = 100 * (1 - first["chance"])
    found, before = (f"{100 * (1 - entry['error']):.1f} %" for entry in (last, first))
    sentence = f"{found} of the views of held-out images recognised; {before} before training, chance {chance:.1f} %"
    assert sentence in words and "the instance task (views of images)" in words


def test_a_run_without_an_ordering_task_beside_one_that_has_some(run: Run, rotation_run: Run, tmp_path: Path) -> None:
    page = written([run.folder, rotation_run.folder], tmp_path / "report.html")
    assert "Rotation:" in page and "Spatial:" in page and "There are no pictures" not in page


def test_many_runs_have_no_pictures(run: Run, tmp_path: Path) -> None:
    for seed in range(5):
        shutil.copytree(run.folder, tmp_path / "arm" / f"seed-{seed}")
    (tmp_path / "table.csv").write_text("arm,seeds,error.spatial mean,error.spatial std\n<b>,5,0.123456,0.01\n")
    runs = find_runs([tmp_path])
    write_report(runs, tmp_path / "report.html", tables=[tmp_path / "table.csv"])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "0.123 ± 0.010" in page and "&lt;b&gt;" in page
    assert "data:image/jpeg" not in page and "up to 4 runs" in page


def test_a_report_that_fails_does_not_fail_the_run(
    tmp_path: Path,
    tiny_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> str:
        raise RuntimeError("no paper")

    monkeypatch.setattr(page_module, "d3", fail)
    run = run_pretraining(tiny_config(out=tmp_path / "run", tasks="S"))
    printed = capsys.readouterr().out
    assert "no report was written (no paper); try again with: unshuffle report" in printed
    assert run.weights.exists() and not run.report.exists() and "Results:" in printed


def test_only_reports_are_overwritten(tmp_path: Path) -> None:
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


def test_data_is_described_by_its_sources_and_splits(run: Run, tmp_path: Path) -> None:
    copied = shutil.copytree(run.folder, tmp_path / "copied")
    source = {
        "medium": "images",
        "address": "<b>photos",
        "items": 1234,
        "skipped": 0,
        "storage": "shards",
        "path": None,
        "short_side": 256,
        "shards": 3,
    }
    splits = {"spatial": {"training": 1034, "validation": 100, "test": 100, "requested": 100, "source": "images"}}
    splits["temporal"] = {**splits["spatial"], "training": 34, "source": "videos"}
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    lines[0] |= {"sources": [source], "splits": splits}
    assert lines[0]["kind"] == "start"
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = " ".join(" ".join(Seen(written([copied], tmp_path / "report.html")).texts).split())
    assert "Data: 1,234 images in <b>photos." in words
    assert "1234 images in <b>photos; read from 3 shards at short side 256 px." in words
    assert "samples training validation test from spatial 1,034 100 100 images temporal 34 100 100 videos" in words
    assert "Temporal task: only 34 samples to train on" in words
