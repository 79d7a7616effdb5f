"""Tar shards from real servers on this machine, by HTTP and S3, that fail in every way that servers do.

`FaultyServer` answers requests from a folder, or passes them on to moto's S3 server, and damages some of the answers.
All addresses are on 127.0.0.1.
"""

import hashlib
import http.client
import io
import os
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unshuffle import cli
from unshuffle.config import Config, demo
from unshuffle.data import shard_files
from unshuffle.data.shard_files import find_shards
from unshuffle.data.shards import ShardOptions, ShardSource, open_shards
from unshuffle.errors import UserError
from unshuffle.options import merge, write_config
from unshuffle.pretraining import run_pretraining

pytest.importorskip("aiohttp")
pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

SHARDS, EACH = 3, 5
STALLED_SECONDS = 0.4
FAULTS = ("500", "stalled", "reset", "cut", "short", "slow")
"""Answers that pass: what is read after them is right."""


def photo(number: int) -> bytes:
    coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((60, 50), Image.Resampling.BICUBIC).save(buffer, "jpeg")
    return buffer.getvalue()


def tar_of(first: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(first, first + EACH):
            info = tarfile.TarInfo(f"{number:05}.jpg")
            info.size = len(photo(number))
            tar.addfile(info, io.BytesIO(photo(number)))
    return buffer.getvalue()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


Backend = Callable[[str, str, dict[str, str], bytes], Answer]


def serve_folder(folder: Path) -> Backend:
    """A web server with ranges and ETags, as Python's own has neither."""

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        file = folder / path.lstrip("/")
        if not file.is_file():
            return Answer(404, {"Content-Length": "0"}, b"")
        content = file.read_bytes()
        facts = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", ""))
        if wanted is None:
            return Answer(200, {**facts, "Content-Length": str(len(content))}, content)
        begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
        facts["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return Answer(206, {**facts, "Content-Length": str(end - begin)}, content[begin:end])

    return answer


def pass_on_to(port: int) -> Backend:
    """A proxy."""

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, body or None, headers)
        response = connection.getresponse()
        content = response.read()
        dropped = ("transfer-encoding", "connection", "date", "server")
        kept = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
        connection.close()
        return Answer(response.status, kept, content)

    return answer


@dataclass
class FaultyServer:
    """A server on 127.0.0.1 whose `fault` names what goes wrong with the n-th request for a file, or nothing."""

    backend: Backend
    fault: Callable[[int], str | None] = lambda number: None
    requests: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with lock:
                    file = self.path.partition("?")[0]
                    fault = outer.fault(sum(request.endswith(file) for request in outer.requests))
                    outer.requests.append(f"{self.command} {file}")
                    outer.faults += [] if fault is None else [fault]
                answer = outer.backend(self.command, self.path, dict(self.headers), body)
                try:
                    self.reply(answer, fault)
                except OSError:  # the other side has given up
                    self.close_connection = True

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

            def reply(self, answer: Answer, fault: str | None) -> None:
                headers, content = dict(answer.headers), answer.body if self.command != "HEAD" else b""
                if fault == "stalled":
                    time.sleep(2 * STALLED_SECONDS)
                if fault == "reset" or (fault == "stalled" and self.command == "HEAD"):
                    self.close_connection = True
                    return
                if fault in ("500", "503", "404", "403"):
                    self.send_response(int(fault))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if fault == "short" and len(content) > 1:  # complete, by its own account
                    content = content[: len(content) // 2]
                    headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
                    headers["Content-Length"] = str(len(content))
                if fault == "wrong":
                    content = bytes([content[0] ^ 1]) + content[1:] if content else b""
                self.send_response(answer.status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if fault == "cut":
                    self.wfile.write(content[: len(content) // 2])
                    self.close_connection = True
                elif fault == "slow":
                    for begin in range(0, len(content), max(1, len(content) // 4)):
                        self.wfile.write(content[begin : begin + max(1, len(content) // 4)])
                        self.wfile.flush()
                        time.sleep(0.02)
                else:
                    self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Remote:
    """The same shards in a local folder and on a server."""

    server: FaultyServer
    local: str
    address: str
    replace: Callable[[str, bytes], None]
    """Write other content to a file on the server."""


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture(params=["http", "s3"])
def remote(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moto_port: int
) -> Iterator[Remote]:
    monkeypatch.setattr(shard_files, "OPENING_PAUSES", (0.05, 0.05))
    monkeypatch.setattr(shard_files, "READING_PAUSES", (0.05, 0.05, 0.05))
    monkeypatch.setattr(shard_files, "TIMEOUT_SECONDS", STALLED_SECONDS)
    contents = {f"img-{shard:03}.tar": tar_of(shard * EACH) for shard in range(SHARDS)}
    folders = [tmp_path / name for name in ("local", "served")]
    for folder in folders:
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    if request.param == "http":
        server = FaultyServer(serve_folder(folders[1]))
        address = f"http://127.0.0.1:{server.port}"
        replace: Callable[[str, bytes], None] = lambda name, content: (folders[1] / name).write_bytes(content)  # type: ignore[assignment,return-value]  # noqa: E731
    else:
        import s3fs

        server = FaultyServer(pass_on_to(moto_port))
        settings = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",  # the repetitions are to be ours
            "NO_PROXY": "127.0.0.1",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
        monkeypatch.setattr(s3fs.S3FileSystem, "read_timeout", STALLED_SECONDS)
        s3fs.S3FileSystem.clear_instance_cache()
        bucket = f"bucket-{os.urandom(4).hex()}"
        fs = s3fs.S3FileSystem()
        fs.mkdir(bucket)
        for name, content in contents.items():
            fs.pipe_file(f"{bucket}/{name}", content)
        s3fs.S3FileSystem.clear_instance_cache()
        address = f"s3://{bucket}"

        def replace(name: str, content: bytes) -> None:
            direct = f"http://127.0.0.1:{moto_port}"
            other = s3fs.S3FileSystem(endpoint_url=direct, skip_instance_cache=True)
            other.pipe_file(f"{bucket}/{name}", content)

    server.requests.clear()
    yield Remote(server, f"{folders[0]}/img-{{000..002}}.tar", f"{address}/img-{{000..002}}.tar", replace)
    server.close()


def opened(address: str, cache: Path, cache_gb: float = 1.0) -> ShardSource:
    return open_shards(address, ShardOptions("images", 32, cache_gb=cache_gb), cache, progress=False)


def pixels_of(source: ShardSource) -> Any:
    return np.stack([source.read(item, [0]) for item in range(len(source))])


def now_and_then(*faults: str) -> Callable[[int], str | None]:
    """These faults in turn, in the first of every six requests for a file: fewer than are repeated."""
    return lambda number: faults[number // 6 % len(faults)] if number % 6 == 0 else None


def begin_epoch(source: ShardSource) -> None:
    """From here on whole shards are copied."""
    source.order(np.arange(len(source)), np.random.default_rng(0))


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_changes_nothing(remote: Remote, tmp_path: Path, fault: str, copies: bool) -> None:
    """From the first request of opening to the last one of reading."""
    local = opened(remote.local, tmp_path / "local-cache")
    remote.server.fault = now_and_then(fault)
    source = opened(remote.address, tmp_path / "cache", 1.0 if copies else 0.0)
    assert source.names == local.names and source.skipped == [], "none is taken for a damaged image"
    if copies:
        begin_epoch(source)
    np.testing.assert_array_equal(pixels_of(source), pixels_of(local))
    assert len(remote.server.faults) >= SHARDS
    assert not list((tmp_path / "cache").rglob("*.tmp"))


@pytest.mark.parametrize("copies", [True, False])
def test_wrong_bytes_are_requested_again(remote: Remote, tmp_path: Path, copies: bool) -> None:
    source = opened(remote.address, tmp_path / "cache", 1.0 if copies else 0.0)
    expected = pixels_of(opened(remote.local, tmp_path / "local-cache"))
    if copies:
        begin_epoch(source)
        source.read(0, [0])
        for copy in (tmp_path / "cache").rglob("*.tar"):  # a disk can damage them too
            content = bytearray(copy.read_bytes())
            content[512 + len(photo(0)) * 3 // 4] ^= 0x55  # in the pixels of the first image, whichever shard it is
            copy.write_bytes(content)
    else:
        remote.server.fault = now_and_then("wrong")
    np.testing.assert_array_equal(pixels_of(source), expected)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("fault", ["500", "stalled", "reset", "cut", "short", "wrong"])
def test_what_stays_broken_ends_with_a_sentence_after_a_few_requests(
    remote: Remote, tmp_path: Path, fault: str, copies: bool
) -> None:
    if fault == "wrong" and copies:
        pytest.skip("in a copy the first byte is that of a name, which is not read again")
    source = opened(remote.address, tmp_path / "cache", 1.0 if copies else 0.0)
    if copies:
        begin_epoch(source)
    remote.server.requests.clear()
    remote.server.fault = lambda number: fault
    begin = time.monotonic()
    with pytest.raises(UserError) as ended:
        source.read(0, [0])
    sentence = str(ended.value)
    assert "img-000.tar" in sentence and "cannot be read: " in sentence and "\n" not in sentence
    assert sentence.endswith("check the storage and the connection, then run the same command again")
    assert len([each for each in remote.server.requests if "img-000" in each]) <= 24, "four, each with a look at it"
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("fault", ["500", "reset", "cut"])
def test_opening_what_stays_broken_ends_with_a_sentence(remote: Remote, tmp_path: Path, fault: str) -> None:
    remote.server.fault = lambda number: fault
    with pytest.raises(UserError) as ended:
        opened(remote.address, tmp_path / "cache")
    sentence = str(ended.value)
    assert re.search(r"img-00\d\.tar", sentence) and "\n" not in sentence
    assert "does not exist" not in sentence, "it does"
    assert not list((tmp_path / "cache").rglob("*.index"))


def test_what_is_not_there_is_not_asked_for_again(remote: Remote, tmp_path: Path) -> None:
    missing = remote.address.replace("img-{000..002}", "nothing")
    with pytest.raises(UserError, match=r"nothing\.tar does not exist: check the address"):
        opened(missing, tmp_path / "cache")
    assert len(remote.server.requests) <= 3


def changed(content: bytes) -> bytes:
    """Content of the same size, with other pixels."""
    other = bytearray(content)
    other[700] ^= 0x55
    return bytes(other)


@pytest.mark.parametrize("same_size", [True, False])
@pytest.mark.parametrize("copies", [True, False])
def test_an_object_that_has_changed_is_said_at_once(
    remote: Remote, tmp_path: Path, copies: bool, same_size: bool
) -> None:
    source = opened(remote.address, tmp_path / "cache", 1.0 if copies else 0.0)
    if copies:
        begin_epoch(source)
    remote.replace("img-000.tar", changed(tar_of(0)) if same_size else tar_of(0)[:-512])
    remote.replace("img-001.tar", tar_of(90) if same_size else tar_of(90)[:-512])
    remote.server.requests.clear()
    with pytest.raises(UserError, match=r"img-001\.tar has changed since it was indexed: start again") as ended:
        source.read(EACH, [0])
    assert "\n" not in str(ended.value)
    assert len([each for each in remote.server.requests if "img-001" in each]) <= 4
    again = opened(remote.address, tmp_path / "cache", 1.0 if copies else 0.0)
    assert "img-001.tar/00090.jpg" in again.names


def test_an_object_that_changes_while_it_is_indexed(remote: Remote, tmp_path: Path) -> None:
    """An index of two versions would be wrong for both."""

    def change_once_it_is_read(number: int) -> None:
        if not changes and any(each.startswith("GET") and "img-001" in each for each in remote.server.requests):
            changes.append(number)
            remote.replace("img-001.tar", tar_of(90))

    changes: list[int] = []
    remote.server.fault = change_once_it_is_read  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"img-001\.tar has changed since it was indexed: start again"):
        opened(f"{remote.address.rpartition('/')[0]}/img-001.tar", tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.index"))
    source = opened(remote.address, tmp_path / "cache")
    assert [name for name in source.names if "img-001" in name] == [f"img-001.tar/{90 + n:05}.jpg" for n in range(EACH)]


def test_patterns_and_folders_are_listed_again_after_a_fault(remote: Remote, tmp_path: Path) -> None:
    if remote.address.startswith("http"):
        pytest.skip("this server lists nothing")
    folder = remote.address.rpartition("/")[0]
    for address in (folder, f"{folder}/*.tar"):
        remote.server.requests.clear()
        remote.server.fault = lambda number: "500" if number == 0 else None
        assert len(find_shards(address)) == SHARDS


def config(images: str, out: Path, cache: Path, cache_gb: float) -> Config:
    values: dict[str, Any] = {
        "images": images,
        "out": str(out),
        "device": "cpu",
        "data": {
            "val_size": 3,
            "workers": 1,
            "image_short_side": 48,
            "cache": str(cache),
            "shard_cache_gb": cache_gb,
            "shard_window": 2,
        },
        "spatial": {"crop_size": 16, "permutations": 6, "head": {"fc6": 8, "hidden": 12}},
        "optim": {"iterations": 6, "batch_size": 4, "warmup": 0, "milestones": []},
        "policy": {"interval": 3, "batches": 3, "num_groups": 3},
        "synthetic": {"gallery": 6, "queries": 3},
        "log": {"train_every": 2, "monitor_every": 6, "checkpoint_every": 3, "pictures": False},
    }
    return merge(demo(), values)


@pytest.mark.parametrize("copies", [True, False])
def test_training_is_bit_identical_to_local_training(remote: Remote, tmp_path: Path, copies: bool) -> None:
    expected = run_pretraining(config(remote.local, tmp_path / "expected", tmp_path / "local-cache", 0.0))
    faults = [fault for fault in FAULTS if fault != "stalled"]
    remote.server.fault = now_and_then(*faults)
    run = run_pretraining(config(remote.address, tmp_path / "run", tmp_path / "cache", 1.0 if copies else 0.0))
    assert run.weights.read_bytes() == expected.weights.read_bytes()
    assert len(remote.server.faults) > SHARDS


def test_a_run_that_loses_its_storage_can_be_resumed(
    remote: Remote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run_pretraining(config(remote.local, tmp_path / "expected", tmp_path / "local-cache", 0.0))
    settings = config(remote.address, tmp_path / "run", tmp_path / "cache", 0.0)
    write_config(settings, tmp_path / "config.yaml")
    words = ["pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(settings.out), "--resume"]
    remote.server.fault = lambda number: "500" if number >= 12 else None
    assert cli.run(words) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("unshuffle: ") and "cannot be read: " in line
    assert len(remote.server.requests) < 100
    remote.server.fault = lambda number: None
    assert cli.run(words) == 0
    assert (tmp_path / "run" / "backbone.safetensors").read_bytes() == expected.weights.read_bytes()
