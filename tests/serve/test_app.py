"""Answers of the server, and what it refuses."""

import io
import json
import math
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from unshuffle.config import LimitsConfig
from unshuffle.evaluation.index import embed
from unshuffle.runs.run import Run

PAGES = ["/", "/compare", "/search", "/puzzle", "/run/first"]


def ready(client: Any, **choice: str) -> dict[str, Any]:
    """Return the state of the search once its indexes are ready."""
    query = "&".join(f"{name}={value}" for name, value in choice.items())
    for _ in range(1000):
        state: dict[str, Any] = client(f"/api/search?{query}").json
        assert not any(index["problem"] for index in state["indexes"])
        if state["indexes"] and all(index["ready"] for index in state["indexes"]):
            return state
    raise AssertionError("the index was not built")


@pytest.fixture
def uploads(images: Path, tmp_path: Path, write_video: Callable[..., Path]) -> dict[str, bytes]:
    """An image and a clip."""
    clip = write_video(tmp_path / "clip.mp4", frames=12)
    return {"picture": (images / "02.png").read_bytes(), "clip": clip.read_bytes()}


# ---- what it answers


def test_pages_and_their_files(client: Any) -> None:
    for path in PAGES:
        answer = client(path)
        assert answer.status == 200 and b"/static/serve.js" in answer.body
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
    for name in ("d3.js", "drawing.js", "serve.js", "report.css", "serve.css"):
        assert client(f"/static/{name}").status == 200


def test_the_table_and_its_csv(client: Any, library_folder: Path) -> None:
    names = [row["name"] for row in client("/api/runs").json["runs"]]
    assert sorted(names) == sorted(path.name for path in library_folder.iterdir())
    text = client("/api/runs.csv?run=second&run=first&run=missing").body.decode()
    assert [line.partition(",")[0] for line in text.splitlines()] == ["name", "second", "first"]


def test_one_run(client: Any) -> None:
    assert client("/api/run/first").json["row"]["state"] == "finished"
    assert client("/api/run/damaged").json["row"]["state"] == "damaged"
    assert client("/api/compare?run=first&run=second&axis=time&seeds=mean").json["differing"] == ["seed"]


def test_a_run_that_diverged_has_curves(serving: Any, copied: Run) -> None:
    with copied.metrics_file.open("a") as file:
        for loss in (math.nan, -math.inf):
            values = {"loss": {"spatial": loss}, "accuracy": {"spatial": 0.1}, "samples_per_second": 5.0}
            file.write(json.dumps({"iteration": 13, "kind": "train", "seconds": 1.0, **values}) + "\n")
    with serving(copied.folder.parent) as client:
        for path in ("/api/run/copied", "/api/compare?run=copied", "/api/runs"):
            text = client(path).body.decode()
            assert "Infinity" not in text.partition('"log"')[0] and json.loads(text, parse_constant=pytest.fail)


def test_the_network_is_asked(client: Any, library_folder: Path) -> None:
    policy = client("/api/policy/first").json["tasks"]
    assert list(policy) == ["spatial", "temporal"] and policy["spatial"]["data"]["sample"]["strip"].startswith("data:")
    early, late = (client(f"/api/solved/first{query}").json for query in ("?at=5", ""))
    assert (early["iteration"], late["iteration"]) == (4, 12)
    assert len(late["tasks"]["spatial"]["samples"]) > 0
    for view in ("policy", "solved"):
        assert "cannot be read" in client(f"/api/{view}/damaged").json["problem"]
    assert client("/api/puzzle/damaged").status == 400


def test_puzzles_of_the_nearest_checkpoint(client: Any) -> None:
    found = [client(f"/api/solved/first?at={at}").json["iteration"] for at in (0, 5, 7, 11, 99)]
    assert found == [4, 4, 8, 12, 12]


def test_policy_and_puzzles_are_computed_when_they_change(
    serving: Any, library_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unshuffle.serve import library, network

    monkeypatch.setattr(library, "SECONDS_BETWEEN_LOOKS", 0.0)
    policy, solved = (mock.Mock(wraps=getattr(network, name)) for name in ("policy_view", "solved_view"))
    monkeypatch.setattr(network, "policy_view", policy)
    monkeypatch.setattr(network, "solved_view", solved)
    run = Run(Path(shutil.copytree(library_folder / "first", tmp_path / "runs" / "live")))
    train = {"kind": "train", "loss": {"spatial": 1.0}, "accuracy": {"spatial": 0.1}, "samples_per_second": 5.0}
    validation = {"kind": "validation", "task": "spatial", "error": 0.5, "chance": 0.8}
    with serving(run.folder.parent) as client:
        for entry, expected in (({}, 1), (train, 1), (validation, 2)):
            if entry:
                with run.metrics_file.open("a") as file:
                    file.write(json.dumps({"iteration": 13, **entry}) + "\n")
            for path in ("/api/policy/live", "/api/solved/live", "/api/solved/live?at=99"):
                assert client(path).json["tasks"]
            assert (policy.call_count, solved.call_count) == (expected, 1)


def test_parts_that_look_the_same(client: Any) -> None:
    from unshuffle.serve.network import _looks

    parts = torch.zeros(4, 3, 2, 2)
    parts[1], parts[3] = 0.5, 0.01
    assert _looks(parts) == [0, 1, 0, 0]
    grey = torch.full((2, 3, 64, 64), 0.5)
    noisy = grey + 0.1 * torch.rand(grey.shape, generator=torch.Generator().manual_seed(0))
    assert _looks(noisy) == [0, 0]
    noisy[1, :, :8, :8] += 0.2
    assert _looks(noisy) == [0, 1], "something is in a corner"
    assert client("/api/puzzle/first").json["looks"] == list(range(9))


def test_weights_that_were_trained_further_are_indexed_again(
    serving: Any, library_folder: Path, images: Path, uniform_run: Run, tmp_path: Path
) -> None:
    run = Run(Path(shutil.copytree(library_folder / "first", tmp_path / "runs" / "first")))
    with serving(run.folder.parent, data=(str(images),)) as client:
        before = ready(client)
        path = f"/api/search/item?data={before['data']}&weights={before['weights'][0]}&item={before['names'][3][0]}"
        first = client(path).json["found"]
        shutil.copy(uniform_run.weights, run.weights)
        assert not client("/api/search").json["indexes"][0]["ready"]
        assert ready(client)["identity"] != before["identity"]
        assert client(path).json["found"] != first


def test_items_keep_their_names_and_a_folder_is_listed_once(serving: Any, library_folder: Path, images: Path) -> None:
    with serving(library_folder, data=(str(images), f"{images}/../{images.name}")) as client:
        state = ready(client)
        assert [choice["title"] for choice in state["datasets"]].count(str(images)) == 1
        assert len([choice for choice in state["datasets"] if images.name in choice["title"]]) == 1
        found = client("/api/search?text=03.P").json["names"]
        assert [name for _, name in found] == ["03.png"] and found[0] in state["names"]
        gone = client(f"/api/search/picture?data={state['data']}&item=0123456789ab")
        assert gone.status == 400 and "no longer in the folder" in gone.json["error"]


def test_a_person_gets_a_page_and_a_program_json(serving: Any, library_folder: Path, client: Any) -> None:
    page = {"Accept": "text/html,*/*"}
    answer = client("/<b>nowhere", headers=page)
    assert answer.status == 404 and b"<p>There is no such page.</p>" in answer.body
    assert client("/nowhere").json == {"error": "there is no such page"}
    with serving(library_folder, host="0.0.0.0", token="secret") as other:
        answer = other("/", headers=page)
        assert answer.status == 401 and b"The token is missing" in answer.body
        cookie = other("/?token=secret").headers["set-cookie"].partition("=")[0]
        assert cookie == f"unshuffle_token_{other.port}"


def test_the_answer_of_the_network(client: Any, library_folder: Path) -> None:
    from unshuffle.report.puzzles import solve_puzzles
    from unshuffle.report.snapshot import Snapshot

    snapshot = Snapshot.newest(Run(library_folder / "first"))
    assert snapshot is not None
    puzzles = solve_puzzles(snapshot, "spatial", 6)
    names = list(snapshot.held_out["spatial"].names)
    for sample, name in enumerate(puzzles.names):
        asked = {"task": "spatial", "sample": names.index(name), "arrangement": puzzles.shown[sample].tolist()}
        answer = client("/api/answer/first", "POST", json.dumps(asked).encode()).json
        assert answer["predicted"] == puzzles.predicted[sample].tolist()
        assert answer["restored"] == puzzles.restored[sample].tolist() and answer["in_set"]
        assert 1 / 6 <= answer["confidence"] <= 1
    puzzle = client("/api/puzzle/first?task=temporal&sample=100&permutation=7").json
    assert puzzle["tasks"] == ["spatial", "temporal"] and sorted(puzzle["arrangement"]) == [0, 1, 2, 3]
    assert puzzle["sample"] < puzzle["samples"]


def test_puzzles_of_images_and_clips_that_are_sent(client: Any, uploads: dict[str, bytes]) -> None:
    picture, clip = uploads["picture"], uploads["clip"]
    for task, body, parts in (("spatial", picture, 9), ("spatial", clip, 9), ("temporal", clip, 4)):
        puzzle = client(f"/api/puzzle/first?task={task}&permutation=1", "POST", body).json
        assert sorted(puzzle["arrangement"]) == list(range(parts)) and puzzle["strip"].startswith("data:image/jpeg")
        asked = {"task": task, "sample": puzzle["sample"], "arrangement": puzzle["arrangement"]}
        answer = client("/api/answer/first", "POST", json.dumps(asked).encode()).json
        assert answer["in_set"] and sorted(answer["restored"]) == list(range(parts))
        again = client(f"/api/puzzle/first?task={task}&permutation=2&sample={puzzle['sample']}").json
        assert again["strip"] == puzzle["strip"] and again["arrangement"] != puzzle["arrangement"]
    other = {**asked, "task": "spatial", "arrangement": list(range(9))}
    for wrong in (other, {**asked, "sample": "0"}, {**asked, "sample": 0.5}):
        assert client("/api/answer/first", "POST", json.dumps(wrong).encode()).status == 400
    forgotten = client("/api/puzzle/first?task=temporal&sample=upload-0123456789abcdef")
    assert forgotten.status == 400 and "choose it again" in forgotten.json["error"]
    refused = client("/api/puzzle/first?task=temporal", "POST", picture)
    assert refused.status == 400 and "choose a video" in refused.json["error"]
    state = ready(client)
    path = f"/api/search/image?data={state['data']}&weights={state['weights'][0]}"
    assert len(client(path, "POST", clip).json["found"]) == 10, "by its middle frame"


def test_a_clip_is_decoded_while_others_are_answered(
    client: Any, uploads: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unshuffle.serve import network

    decoding, answered, plain = threading.Event(), threading.Event(), network.decode_squares

    def slow(*args: Any) -> Any:
        decoding.set()
        assert answered.wait(30), "the others waited for the clip"
        return plain(*args)

    monkeypatch.setattr(network, "decode_squares", slow)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(client, "/api/puzzle/first?task=spatial", "POST", uploads["clip"])
        assert decoding.wait(30)
        assert client("/api/puzzle/first").status == 200
        answered.set()
        assert sent.result().status == 200


def test_an_upload_must_end_in_time(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.serve.app.SECONDS_FOR_UPLOAD", 0.3)
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        head = f"POST /api/puzzle/first HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Length: 1000\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\nthe rest never comes".encode())
        answer = connection.makefile("rb").read()
    assert answer.split(maxsplit=2)[1] == b"408" and b"the upload took more than" in answer


def test_uploads_are_forgotten_in_the_end(client: Any, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.serve.network.MAX_UPLOADS", 2)
    picture = (images / "02.png").read_bytes()
    names = [client("/api/puzzle/first", "POST", picture).json["sample"] for _ in range(3)]
    asked = [{"task": "spatial", "sample": name, "arrangement": list(range(9))} for name in names]
    assert [client("/api/answer/first", "POST", json.dumps(one).encode()).status for one in asked] == [400, 200, 200]


def test_neighbours_are_those_of_a_brute_force_search(client: Any, images: Path, library_folder: Path) -> None:
    state = ready(client)
    assert state["items"] == 13 and state["indexes"][0]["title"] == state["backbones"][0]["title"]
    weights = next(choice for choice in state["backbones"] if choice["title"] == "first")["id"]
    ready(client, data=state["data"], weights=weights)
    index = embed(images, library_folder / "first", pool="flat", device="cpu", kind="images")
    centred = index.features - index.features.mean(dim=0) * len(index) / (len(index) + 10)
    cosines = torch.nn.functional.cosine_similarity(centred[:, None], centred[None], dim=2)
    for item, name in (state["names"][0], state["names"][5]):
        answer = client(f"/api/search/item?data={state['data']}&weights={weights}&item={item}").json
        row = index.names.index(name)
        order = [other for other in cosines[row].argsort(descending=True).tolist() if other != row][:10]
        assert [found["name"] for found in answer["found"]] == [index.names[other] for other in order]
        assert [found["similarity"] for found in answer["found"]] == pytest.approx(
            cosines[row, order].tolist(), abs=1e-4
        )
    picture = (images / "03.png").read_bytes()
    answer = client(f"/api/search/image?data={state['data']}&weights={weights}", "POST", picture).json
    assert answer["found"][0]["name"] == "03.png" and answer["found"][0]["similarity"] == pytest.approx(1, abs=1e-3)
    jpeg = client(f"/api/search/picture?data={state['data']}&item={state['names'][2][0]}")
    assert Image.open(io.BytesIO(jpeg.body)).size == (160, 160)


def test_the_index_is_kept_in_the_cache_and_renewed(
    serving: Any, library_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unshuffle.serve import search

    monkeypatch.setattr(search, "SECONDS_BETWEEN_LOOKS", 0.0)
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    with serving(library_folder, data=(str(folder),)) as client:
        first = ready(client)
        kept = {path.name for path in (Path.home() / ".cache/unshuffle/indexes").iterdir()}
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / "new.png")
        second = ready(client)
        assert (first["items"], second["items"]) == (4, 5) and first["identity"] != second["identity"]
        assert kept < {path.name for path in (Path.home() / ".cache/unshuffle/indexes").iterdir()}
    monkeypatch.setattr("unshuffle.evaluation.features._compute", lambda *_: pytest.fail("it is computed again"))
    with serving(library_folder, data=(str(folder),)) as client:
        assert ready(client)["items"] == 5


def test_reading_runs_imports_no_torch(library_folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from unshuffle.serve import app, views; import unshuffle.serve.server\n"
        "from unshuffle.serve.library import Library; runs = Library([Path(sys.argv[1])]).runs()\n"
        "for watched in runs.values(): views.describe(watched); views.run_view(watched)\n"
        "views.compare_view(list(runs.values()), 'passes', seeds=True)\n"
        "assert len(runs) == 5; print('torch' in sys.modules)"
    )
    words = [sys.executable, "-c", program, str(library_folder)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


# ---- what it refuses


def test_nothing_is_written_into_runs(client: Any, library_folder: Path) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in library_folder.rglob("*")}

    before = files()
    for path in ("/api/runs", "/api/run/first", "/api/policy/first", "/api/solved/first", "/api/puzzle/first"):
        assert client(path).status == 200
    assert files() == before


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../../etc/passwd",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/page.html",
        "/api/run/../../../etc",
        "/api/run/%2e%2e%2f%2e%2e%2fetc",
        "/api/policy//etc",
        "/api/solved/first%2f..%2fsecond",
        "/api/puzzle/first%00",
        "/etc/passwd",
    ],
)
def test_paths_reach_no_file(client: Any, path: str) -> None:
    answer = client(path)
    assert answer.status == 404 and b"root:" not in answer.body


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[", "10.0.0.1"]
)
def test_another_host_is_refused(client: Any, host: str) -> None:
    assert client("/api/runs", headers={"Host": host}).status in (400, 421)


def test_another_origin_is_refused(client: Any) -> None:
    assert client("/api/runs", headers={"Origin": client.address}).status == 200
    for origin in ("http://evil.example", "null", client.address.replace("http", "https")):
        assert client("/api/runs", headers={"Origin": origin}).status == 403
    assert client("/api/runs", headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert client("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status == 200, "a link"


def test_a_token(serving: Any, library_folder: Path) -> None:
    with serving(library_folder, host="0.0.0.0", token="secret") as client:
        assert client("/api/runs").status == client("/api/runs?token=wrong").status == 401
        assert client("/api/runs", headers={"Host": "evil.example"}).status == 421
        entry = client("/?filter=a&token=secret")
        assert (entry.status, entry.headers["location"]) == (303, "/?filter=a")
        cookie = entry.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert client("/api/runs", headers={"Cookie": cookie.partition(";")[0]}).status == 200
        assert client("/api/runs", headers={"Authorization": "Bearer secret"}).status == 200
        assert client("//evil.example/?token=secret").headers["location"] == "/evil.example/"


def test_uploads_are_limited(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ready(client)
    path = f"/api/search/image?data={state['data']}&weights={state['weights'][0]}"
    for body in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + bytes(100), b"%!PS-Adobe-3.0 EPSF-3.0", b"<svg/>"):
        answer = client(path, "POST", body)
        assert answer.status == 400 and answer.json["error"].startswith("this image cannot be used")
    monkeypatch.setattr("unshuffle.serve.app.MAX_UPLOAD", 1000)
    assert client(path, "POST", bytes(1001)).status == 413
    monkeypatch.setattr("unshuffle.serve.uploads.LIMITS", LimitsConfig(max_pixels=100))
    monkeypatch.setattr("unshuffle.serve.app.MAX_UPLOAD", 10**6)
    stream = io.BytesIO()
    Image.new("RGB", (64, 64)).save(stream, "PNG")
    assert "pixels" in client(path, "POST", stream.getvalue()).json["error"]
    assert client("/api/search/image?data=x&weights=y", "POST", stream.getvalue()).status == 400


def test_puzzle_uploads_are_limited(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mp4 = b"\x00\x00\x00\x18ftypisom" + bytes(500)
    for body in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + bytes(100), mp4, b"http://127.0.0.1/x.m3u8", b"#EXTM3U\n"):
        for task in ("spatial", "temporal"):
            assert client(f"/api/puzzle/first?task={task}", "POST", body).status == 400
    monkeypatch.setattr("unshuffle.serve.app.MAX_UPLOAD", 1000)
    assert client("/api/puzzle/first", "POST", bytes(1001)).status == 413


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["picture", "clip"]),
    task=st.sampled_from(["spatial", "temporal"]),
    at=st.floats(0, 1),
    inserted=st.binary(max_size=20),
    removed=st.integers(0, 400),
)
def test_damaged_uploads_have_a_proper_answer(
    client: Any, uploads: dict[str, bytes], name: str, task: str, at: float, inserted: bytes, removed: int
) -> None:
    sound = uploads[name]
    begin = int(at * len(sound))
    answer = client(f"/api/puzzle/first?task={task}", "POST", sound[:begin] + inserted + sound[begin + removed :])
    assert answer.status in (200, 400), answer.body


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["Host", "Origin", "Cookie", "Authorization", "Sec-Fetch-Site", "Content-Length", "Range"]),
    value=st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=60),
)
def test_any_header_has_a_proper_answer(client: Any, name: str, value: str) -> None:
    answer = client("/api/runs", headers={name: value})
    assert answer.status in (200, 400, 403, 421), answer.body
    assert name != "Origin" or (answer.status == 200) == (value == client.address)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # somebody tries https
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /api/answer/first HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nshort",
        b"POST /api/answer/first HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n",
    ],
)
def test_what_is_no_request_leaves_the_server_alive(client: Any, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert not answer or answer.split(maxsplit=2)[1] in (b"400", b"421", b"505"), answer
    assert client("/api/runs").status == 200


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"[" * 9000),
        b'{"task": "spatial", "sample": 0}',
        b'{"task": 1, "sample": 0, "arrangement": []}',
        b'{"task": "spatial", "sample": true, "arrangement": [0]}',
        b'{"task": "spatial", "sample": -1, "arrangement": [0]}',
        b'{"task": "spatial", "sample": 0, "arrangement": [0, 0, 0, 0, 0, 0, 0, 0, 0]}',
    ],
)
def test_malformed_arrangements(client: Any, body: bytes) -> None:
    assert client("/api/answer/first", "POST", body).status == 400
    assert client("/api/answer/missing", "POST", body).status == 404


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(
        ["api/runs", "api/runs.csv", "api/compare", "api/run", "api/policy", "api/solved", "api/puzzle", "api/answer",
         "api/search", "api/search/item", "api/search/picture", "api/search/image", "run", "static", ""]
    ),
    rest=st.text(max_size=30),
    query=st.dictionaries(
        st.sampled_from(["run", "axis", "seeds", "at", "task", "sample", "permutation", "data", "weights", "item"]),
        st.text(max_size=20) | st.integers().map(str),
        max_size=4,
    ),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    body=st.none() | st.binary(max_size=200),
)  # fmt: skip
def test_any_request_has_a_proper_answer(
    client: Any, path: str, rest: str, query: dict[str, str], method: str, body: bytes | None
) -> None:
    words = "&".join(f"{name}={quote(value, errors='replace')}" for name, value in query.items())
    answer = client(f"/{path}/{quote(rest, errors='replace')}?{words}" if rest else f"/{path}?{words}", method, body)
    assert answer.status in (200, 204, 303, 307, 400, 404, 405, 413), (answer.status, answer.body)
    assert client("/api/runs").status == 200, "it is alive"
