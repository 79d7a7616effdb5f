"""The figures in the page of the documentation are those of the benchmark."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows(name: str) -> list[dict[str, str]]:
    lines = (ROOT / "benchmarks" / "results" / f"serve_{name}_cpu.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_the_table_of_loads_has_the_figures_of_the_benchmark() -> None:
    table = (ROOT / "docs" / "how-to" / "live-page.md").read_text().partition("| measured |")[2]
    (load,) = rows("load")
    points = {row["what"]: row for row in rows("points")}
    few, *many = rows("search")
    clock, processor = rows("training")
    exact, short = many
    figures = [
        f"{float(load['seconds_to_the_page']):.1f} s, {float(load['seconds_to_the_table']):.1f} s",
        f"{int(load['requests']):,} requests",
        f"median {float(load['median_ms']):.0f} ms, 99 % within {float(load['p99_ms']):.0f} ms",
        f"from {float(load['memory_before_mb']):.0f} to {float(load['memory_after_mb']):.0f} MB",
        f"{float(points['the table, while the logs are read']['first_s']):.1f} s; all are read after "
        f"{float(points['all logs are read']['first_s']):.0f} s",
        f"search in {int(few['images']):,} photographs | {few['median_ms']} ms a query (median of {few['queries']}",
        f"search in {int(exact['images']):,} photographs | all compared: {exact['median_ms']} ms; {short['search']}: "
        f"{short['median_ms']} ms, recall of the ten nearest {short['recall_at_10']} for {short['queries']} queries",
        f"{processor['slower_percent']} % CPU time of an iteration".replace("-", "−"),
        f"{float(clock['slower_percent']):+.1f} % wall-clock time ({len(clock['alone'].split())} pairs",
    ]
    assert [figure for figure in figures if figure not in table] == []
    assert load["errors"] == "0" and few["recall_at_10"] == few["same_top_10"] == "1.0"
