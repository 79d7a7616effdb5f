"""The live page under load: clients, long logs, large folders to search, and a training beside it.

    python benchmarks/serve.py load RUNS [--clients 50] [--seconds 60]
    python benchmarks/serve.py points RUN [--runs 10] [--lines 100000]
    python benchmarks/serve.py search DATA --cache FOLDER [--sizes 20000 30000] [--queries 200]
    python benchmarks/serve.py training [--clients 50] [--pairs 8]

load: each client holds a stream open and asks for the table and for a run in turn; before that, the time from the
command to the page and its table. points: copies of a run with long logs: time and size of each answer, CPU time of the
server for it, and the time until Chromium has drawn it. search: time of a query and the recall of its ten nearest
against brute force. training: a demo training with one thread pinned to one core; server and clients, pinned to the
other, are paused and resumed in turn; one of the clients asks for what the page of the run asks for, policy and puzzles
included. Each writes benchmarks/results/serve_NAME_cpu.csv.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from table import write_table

TRAINING_CORE, SERVER_CORE = 0, 1


# ---- the server, and requests


@contextmanager
def server(runs: Path, *, core: int | None = None) -> Iterator[tuple[int, int]]:
    """Start the command; yield its port and its process id."""
    words = [sys.executable, "-m", "unshuffle", "serve", str(runs), "--port", "0"]
    with subprocess.Popen([*pinned(core), *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+)/", process.stdout.readline())
            assert found is not None
            yield int(found[1]), process.pid
        finally:
            process.terminate()


def pinned(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "-c", str(core)]


async def request(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split(maxsplit=2)[1]), answer.partition(b"\r\n\r\n")[2]


def ask(port: int, path: str) -> bytes:
    status, body = asyncio.run(request(port, path))
    assert status == 200, (status, body)
    return body


async def client(port: int, paths: list[str], until: float, times: list[float], errors: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    await reader.readuntil(b"data: ")
    number = 0
    while time.perf_counter() < until:
        begin = time.perf_counter()
        status, _ = await request(port, paths[number % len(paths)])
        times.append(time.perf_counter() - begin)
        if status != 200:
            errors.append(status)
        number += 1
        await asyncio.sleep(0.5)
    writer.close()


async def clients(port: int, count: int, seconds: float, paths: list[str]) -> tuple[list[float], list[int]]:
    times, errors = list[float](), list[int]()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, paths, until, times, errors) for _ in range(count)))
    return sorted(times), errors


# ---- load


def memory_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def load(options: argparse.Namespace) -> None:
    begin = time.perf_counter()
    with server(options.runs) as (port, pid):
        ask(port, "/")
        page = time.perf_counter() - begin
        ask(port, "/api/runs")
        table = time.perf_counter() - begin
        names = [path.parent.name for path in sorted(options.runs.glob("*/config.yaml"))]
        paths = ["/", "/api/runs", *(f"/api/run/{quote(name)}" for name in names)]
        before = memory_mb(pid)
        times, errors = asyncio.run(clients(port, options.clients, options.seconds, paths))
        row = {
            "seconds_to_the_page": round(page, 2),
            "seconds_to_the_table": round(table, 2),
            "runs": len(names),
            "clients": options.clients,
            "seconds": options.seconds,
            "requests": len(times),
            "errors": len(errors),
            "median_ms": round(1e3 * times[len(times) // 2], 1),
            "p99_ms": round(1e3 * times[int(0.99 * len(times))], 1),
            "memory_before_mb": round(before, 1),
            "memory_after_mb": round(memory_mb(pid), 1),
            "imports_torch": "torch" in Path(f"/proc/{pid}/maps").read_text(),
        }
    write_table("serve_load_cpu", [row])


# ---- long logs


def long_run(run: Path, copy: Path, lines: int, seed: int) -> None:
    """Write a run whose log has so many lines: 19 of `train`, then one of a validation, and so on."""
    shutil.copytree(run / "permutations", copy / "permutations")
    text = (run / "config.yaml").read_text()
    text = re.sub(r"\n  iterations: \d+\n", f"\n  iterations: {20 * lines}\n", text)
    (copy / "config.yaml").write_text(re.sub(r"\nseed: \d+\n", f"\nseed: {seed}\n", text))
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = next(entry for entry in logged if entry["kind"] == "train")
    validations = {entry["task"]: entry for entry in logged if entry["kind"] == "validation"}
    rng, tasks = random.Random(seed), list(validations)
    with (copy / "metrics.jsonl").open("w") as file:
        file.write(json.dumps(next(entry for entry in logged if entry["kind"] == "start")) + "\n")
        for step in range(1, lines):
            value = 4.6 * math.exp(-3 * step / lines) + rng.gauss(0, 0.1)
            if step % 20:
                entry = train | {"loss": dict.fromkeys(train["loss"], value)}
                entry["samples_per_second"] = 100 + 20 * rng.random()
            else:
                entry = validations[tasks[step // 20 % len(tasks)]] | {"error": min(1, max(0, value / 4.6))}
            file.write(json.dumps(entry | {"iteration": 10 * step, "seconds": 0.5 * step, "time": 1.7e9 + step}) + "\n")


def points(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
    from browser import browse, find_chromium

    chromium = find_chromium()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for number in range(options.runs):
            long_run(options.run, runs / f"run-{number}", options.lines, number)
        begin = time.perf_counter()
        with server(runs) as (port, pid):
            ask(port, "/api/runs")
            first = time.perf_counter() - begin
            while any("reading" in row["message"] for row in json.loads(ask(port, "/api/runs"))["runs"]):
                time.sleep(0.5)
            rows.append({"what": "the table, while the logs are read", "first_s": round(first, 2)})
            read = {"first_s": round(time.perf_counter() - begin, 2), "first_cpu_s": round(processor_seconds(pid), 2)}
            rows.append({"what": "all logs are read", **read})
            rows.append({"what": "memory of the server", "kb": round(1e3 * memory_mb(pid))})
            chosen = "&".join(f"run=run-{number}" for number in range(options.runs))
            paths = {
                "/": "/api/runs",
                "/run/run-0": "/api/run/run-0",
                **{f"/compare?{chosen}&axis={axis}": f"/api/compare?{chosen}&axis={axis}"
                   for axis in ("iterations", "time", "passes")},
            }  # fmt: skip
            complete = {"/": f"document.querySelectorAll('tbody tr').length === {options.runs}"}
            for page, path in paths.items():
                # the first answer is computed, later ones are kept until something changes
                times, costs = [], []
                for _ in range(6):
                    start, cost = time.perf_counter(), processor_seconds(pid)
                    body = ask(port, path)
                    times.append(time.perf_counter() - start)
                    costs.append(processor_seconds(pid) - cost)
                row = {
                    "what": re.sub(r"run=.*&axis=", "axis=", page),
                    "first_s": round(times[0], 3),
                    "first_cpu_s": round(costs[0], 2),
                    "then_ms": round(1e3 * statistics.median(times[1:]), 1),
                    "kb": round(len(body) / 1e3),
                }
                if chromium is not None:
                    with browse(chromium, Path(folder) / f"profile-{len(rows)}") as tab:
                        start = time.perf_counter()
                        tab.visit(f"http://127.0.0.1:{port}{page}")
                        tab.wait(complete.get(page, "document.querySelectorAll('.chart path.curve').length > 2"))
                        row["in_chromium_s"] = round(time.perf_counter() - start, 2)
                rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_table("serve_points_cpu", [dict.fromkeys(names, "") | row for row in rows])


# ---- search


def search(options: argparse.Namespace) -> None:
    import numpy as np
    import torch
    from rich.console import Console

    from unshuffle.evaluation import index as indexing
    from unshuffle.evaluation.features import FeatureCache, find_backbone
    from unshuffle.evaluation.index import Index, build_index, open_unlabelled

    torch.set_num_threads(os.cpu_count() or 1)
    backbone = find_backbone("pretrained")
    data = open_unlabelled(backbone, options.data, kind="images")
    data = data.subset(range(min(max(options.sizes), len(data))))
    cache = FeatureCache(options.cache, "benchmark")
    whole = build_index(
        backbone, data, "pretrained", pool="flat", device=torch.device("cpu"), console=Console(), workers=1, cache=cache
    )
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(whole)))
    rows = []
    for size in options.sizes:
        chosen = order[:size].sort().values
        features = whole.features if size >= len(whole) else whole.features[chosen]
        index = Index(features, whole.dataset.subset(range(len(features))), backbone, "pretrained", "flat")
        begin = time.perf_counter()
        index.search(features[:1], exact=False)
        prepared = time.perf_counter() - begin
        queries = features[torch.linspace(0, len(features) - 1, options.queries).long()]
        centred = torch.nn.functional.normalize(features - index._mean, dim=1)
        for exact in (True, False):
            times, hits, first, same = [], 0, 0, 0
            for query in queries:
                begin = time.perf_counter()
                found = index.search(query[None], 11, exact=exact).items[0, 1:].tolist()  # the first is the query
                times.append(time.perf_counter() - begin)
                brute = (centred @ torch.nn.functional.normalize(query - index._mean, dim=0)).topk(11).indices[1:]
                hits += len(set(found) & set(brute.tolist()))
                first += found[0] == int(brute[0])
                same += set(found) == set(brute.tolist())
            limit = features.numel() <= indexing.EXACT_VALUES
            rows.append({
                "images": len(features),
                "search": "all items" if exact or limit else f"shortlist of {indexing.SHORTLIST}",
                "queries": options.queries,
                "median_ms": round(1e3 * statistics.median(times), 1),
                "p99_ms": round(1e3 * sorted(times)[int(0.99 * len(times))], 1),
                "recall_at_10": round(hits / 10 / options.queries, 4),
                "same_top_10": round(same / options.queries, 4),
                "same_first": round(first / options.queries, 4),
                "seconds_to_prepare": round(prepared, 1),
                "threads": torch.get_num_threads(),
            })  # fmt: skip
            if limit:
                break
    write_table("serve_search_cpu", rows)


# ---- a training beside it


def training(options: argparse.Namespace) -> None:
    """Train on one core; on the other one, server and clients are paused and resumed in turn."""
    costs: dict[str, list[Cost]] = {"alone": [], "beside": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = Path(folder) / "run"
        words = [sys.executable, "-m", "unshuffle", "pretrain", "--preset", "demo", "--tasks", "S", "--out", str(run)]
        words += ["--iterations", "100000", "--log.train_every", "1"]
        trained = stack.enter_context(
            subprocess.Popen(
                [*pinned(TRAINING_CORE), *words], stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        )
        stack.callback(trained.kill)
        port, pid = stack.enter_context(server(Path(folder), core=SERVER_CORE))
        asking = stack.enter_context(
            subprocess.Popen(
                [*pinned(SERVER_CORE), sys.executable, __file__, "clients", str(port), str(options.clients)]
            )
        )
        stack.callback(asking.kill)
        iteration = EPISODE
        wait_for(run, iteration)
        for pair in range(options.pairs):
            for kind in ("alone", "beside") if pair % 2 == 0 else ("beside", "alone"):
                for paused in (asking.pid, pid):
                    os.kill(paused, signal.SIGSTOP if kind == "alone" else signal.SIGCONT)
                iteration += 2
                wait_for(run, iteration)
                before = time.perf_counter(), processor_seconds(trained.pid)
                iteration += EPISODE
                wait_for(run, iteration)
                after = time.perf_counter(), processor_seconds(trained.pid)
                costs[kind].append((after[0] - before[0], after[1] - before[1]))
        for paused in (asking.pid, pid):
            os.kill(paused, signal.SIGCONT)
    rows = []
    for number, what in enumerate(("clock", "processor")):
        alone, beside = ([1e3 * cost[number] / EPISODE for cost in costs[kind]] for kind in ("alone", "beside"))
        rows.append({
            "what": f"{what} time of an iteration [ms]",
            "clients": options.clients,
            "alone_median": round(statistics.median(alone), 1),
            "beside_median": round(statistics.median(beside), 1),
            "slower_percent": round(100 * (statistics.median(beside) / statistics.median(alone) - 1), 1),
            "alone": " ".join(f"{value:.1f}" for value in alone),
            "beside": " ".join(f"{value:.1f}" for value in beside),
        })  # fmt: skip
    write_table("serve_training_cpu", rows)


Cost = tuple[float, float]
"""Seconds of the clock, and of the processor."""
EPISODE = 25
"""Iterations that are timed at a time: the preset validates every 25."""


def wait_for(run: Path, iteration: int) -> None:
    """Wait until the line of an iteration is logged."""
    line = f'{{"iteration": {iteration}, "kind": "train"'
    while not ((run / "metrics.jsonl").exists() and line in (run / "metrics.jsonl").read_text()):
        time.sleep(0.01)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def endless_clients(options: argparse.Namespace) -> None:
    paths = ["/", "/api/runs", "/api/run/run", "/api/compare?run=run"]
    page = ["/api/run/run", "/api/policy/run", "/api/solved/run"]

    async def asks() -> None:
        while json.loads((await request(options.port, "/api/runs"))[1])["runs"] == []:
            await asyncio.sleep(0.2)
        await asyncio.gather(
            clients(options.port, options.count - 1, 3600, paths), clients(options.port, 1, 3600, page)
        )

    asyncio.run(asks())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("load")
    command.add_argument("runs", type=Path)
    command.add_argument("--clients", type=int, default=50)
    command.add_argument("--seconds", type=float, default=60)
    command.set_defaults(measure=load)
    command = commands.add_parser("points")
    command.add_argument("run", type=Path)
    command.add_argument("--runs", type=int, default=10)
    command.add_argument("--lines", type=int, default=100_000)
    command.set_defaults(measure=points)
    command = commands.add_parser("search")
    command.add_argument("data", type=Path)
    command.add_argument("--sizes", type=int, nargs="+", default=[20_000, 30_000])
    command.add_argument("--queries", type=int, default=200)
    command.add_argument("--cache", type=Path, required=True, help="folder in which the features are kept")
    command.set_defaults(measure=search)
    command = commands.add_parser("training")
    command.add_argument("--clients", type=int, default=50)
    command.add_argument("--pairs", type=int, default=8)
    command.set_defaults(measure=training)
    command = commands.add_parser("clients")
    command.add_argument("port", type=int)
    command.add_argument("count", type=int)
    command.set_defaults(measure=endless_clients)
    options = parser.parse_args()
    options.measure(options)


if __name__ == "__main__":
    main()
