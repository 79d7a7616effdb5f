"""Load on the live page: clients on loopback, the answers they get, and the memory of the server.

    python benchmarks/serve.py RUNS [--clients 50] [--seconds 60]

Each client holds a stream open and asks for the table and for a run in turn. One row is written.
"""

import argparse
import asyncio
import csv
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

RESULTS = Path(__file__).parent / "results" / "serve_cpu.csv"


async def request(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split(maxsplit=2)[1]), answer


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


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1e3


async def load(port: int, pid: int, clients: int, seconds: float, paths: list[str]) -> dict[str, float]:
    times, errors = list[float](), list[int]()
    before = memory_mb(pid)
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, paths, until, times, errors) for _ in range(clients)))
    ordered = sorted(times)
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(times),
        "errors": len(errors),
        "median_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[int(0.99 * len(ordered))],
        "memory_before_mb": before,
        "memory_after_mb": memory_mb(pid),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    words = [sys.executable, "-m", "unshuffle", "serve", str(options.runs), "--port", "0"]
    begin = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+)/", server.stdout.readline())
            assert found is not None
            port = int(found[1])
            status, _ = asyncio.run(request(port, "/api/runs"))
            assert status == 200
            row: dict[str, object] = {"seconds_to_the_table": round(time.perf_counter() - begin, 2)}
            names = [path.parent.name for path in sorted(options.runs.glob("*/config.yaml"))]
            paths = ["/", "/api/runs", *(f"/api/run/{quote(name)}" for name in names)]
            measured = asyncio.run(load(port, server.pid, options.clients, options.seconds, paths))
            row |= {"runs": len(names), **{name: round(value, 1) for name, value in measured.items()}}
        finally:
            server.terminate()
    command = (
        f"python benchmarks/serve.py {options.runs.name} --clients {options.clients} --seconds {options.seconds:g}"
    )
    row |= {"python": platform.python_version(), "machine": platform.machine(), "command": command}
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    print(row)


if __name__ == "__main__":
    main()
