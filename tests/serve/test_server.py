"""The command as a user runs it."""

import http.client
import ipaddress
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from unshuffle.cli import run as command_line


@contextmanager
def command(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command and yield it with the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unshuffle", "serve", "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_the_command_serves_until_it_is_interrupted(library_folder: Path) -> None:
    with command(str(library_folder)) as (server, line):
        port = re.match(r"http://127\.0\.0\.1:(\d+)/  ", line)
        assert port is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=30)
        connection.request("GET", "/api/events")
        assert b"first" in connection.getresponse().readline()
        server.send_signal(signal.SIGINT)  # with an open stream
        assert server.wait(timeout=30) == 0
        assert server.stderr is not None and server.stderr.read() == ""
        connection.close()


def test_another_host_gets_a_token(library_folder: Path) -> None:
    with command(str(library_folder), "--host", "0.0.0.0") as (_, line):
        found = re.match(r"http://([^/]+):\d+/\?token=[\w-]{20,}  ", line)
        assert found is not None
        assert found[1] == socket.gethostname() or ipaddress.ip_address(found[1]), "an address that others can reach"


def test_errors_are_one_sentence(library_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert command_line(["serve", str(library_folder), "--port", str(port)]) == 2
    assert f"port {port} cannot be used" in capsys.readouterr().err
    assert command_line(["serve", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.endswith("missing is not a folder: give a folder of runs, or a run folder\n")
