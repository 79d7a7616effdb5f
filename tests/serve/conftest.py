"""A server in a thread, on runs so small that every test can look at one."""

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from unshuffle.runs.run import Run

uvicorn = pytest.importorskip("uvicorn")
HOSTILE = "<img src=x onerror=document.title='pwned'>"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends requests exactly as they are given."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def __call__(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        answer = Answer(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        )
        connection.close()
        return answer


@contextmanager
def serving(
    *folders: Path, host: str = "127.0.0.1", token: str | None = None, data: tuple[str, ...] = ()
) -> Iterator[Client]:
    from unshuffle.serve.app import build_app

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    app = build_app(folders, host=host, token=token, data=data)
    config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Client(listening.getsockname()[1])
    app.state.stopping = server.should_exit = True
    thread.join(timeout=30)
    listening.close()


@pytest.fixture(name="serving")
def serving_fixture() -> Callable[..., Any]:
    return serving


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of noise, coarse enough to differ; one of them has a hostile name, one is broken."""
    folder = tmp_path_factory.mktemp("searched")
    for number in range(12):
        coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        name = HOSTILE.replace("/", "") if number == 11 else f"{number:02}"
        Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC).save(folder / f"{name}.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    return folder


@pytest.fixture(scope="session")
def library_folder(tmp_path_factory: pytest.TempPathFactory, tiny_run: Callable[..., Run]) -> Path:
    """Runs: `first`, `second` with another seed, one with a hostile name, `damaged`, and `instance` without order."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    first = tiny_run(folder / "first", log={"pictures": True})
    for name in ("second", HOSTILE):
        copied = Run(Path(shutil.copytree(first.folder, folder / name)))
        text = copied.config_file.read_text()
        copied.config_file.write_text(text.replace("\nseed: 0\n", "\nseed: 1\n") if name == "second" else text)
    tiny_run(folder / "instance", tasks="I", log={"pictures": True})
    (folder / "damaged").mkdir()
    (folder / "damaged" / "config.yaml").write_text("tasks: [")
    return folder


@pytest.fixture(scope="session")
def client(library_folder: Path, images: Path) -> Iterator[Client]:
    with serving(library_folder, data=(str(images),)) as client:
        yield client
