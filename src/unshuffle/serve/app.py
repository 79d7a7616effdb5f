"""The web application: pages, their data as JSON, and a stream that tells when there is something new."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from unshuffle.errors import UserError
from unshuffle.report.rendering import d3, template_source
from unshuffle.serve import views
from unshuffle.serve.library import Library, WatchedRun
from unshuffle.serve.safety import Guard, problem_response
from unshuffle.wording import os_error_sentence

if TYPE_CHECKING:  # they import torch
    from unshuffle.serve.network import Snapshots
    from unshuffle.serve.search import Searches

T = TypeVar("T")
STATIC = Path(__file__).parent / "static"
SCRIPT, STYLE = "text/javascript", "text/css"
MAX_UPLOAD = 20_000_000
"""Bytes of an image or a clip."""
MAX_ARRANGEMENT = 10_000
"""Bytes of a request about a puzzle."""
MAX_COMPARED = 40
MAX_STREAMS = 200
SECONDS_BETWEEN_EVENTS, SECONDS_BETWEEN_SIGNS = 1.0, 15.0
SECONDS_FOR_UPLOAD = 120.0


def build_app(folders: Sequence[Path], *, host: str, token: str | None, data: Sequence[str] = ()) -> Starlette:
    """Return the application for some folders of runs; `data` are datasets to search beside those of the runs."""
    server = _Server(Library(folders), data)
    pages = [Route(path, _page) for path in ("/", "/compare", "/search", "/puzzle", "/run/{name:path}")]
    routes = [
        *pages,
        Route("/static/{name}", _static),
        Route("/favicon.ico", lambda _: Response(status_code=204)),
        Route("/api/events", server.events),
        Route("/api/runs", server.runs),
        Route("/api/runs.csv", server.table),
        Route("/api/compare", server.compare),
        Route("/api/run/{name:path}", server.run),
        Route("/api/policy/{name:path}", server.policy),
        Route("/api/solved/{name:path}", server.solved),
        Route("/api/puzzle/{name:path}", server.puzzle, methods=["GET", "POST"]),
        Route("/api/answer/{name:path}", server.answer, methods=["POST"]),
        Route("/api/search", server.search_state),
        Route("/api/search/item", server.search_item),
        Route("/api/search/picture", server.search_picture),
        Route("/api/search/image", server.search_image, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: _http_problem,
        UserError: _user_problem,
        OSError: _system_problem,
        Exception: _unexpected,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, middleware=[Middleware(Guard, host=host, token=token)])
    app.state.stopping = False  # streams end when it is set
    return app


# ---- files of the page


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    own = {name: (STATIC / name).read_text(encoding="utf-8") for name in ("serve.js", "serve.css", "page.html")}
    shared = {name: template_source(name) for name in ("drawing.js", "report.css")}
    kinds = {"js": SCRIPT, "css": STYLE, "html": "text/html"}
    texts = {**own, **shared, "d3.js": d3()}
    return {name: (text.encode(), kinds[name.rpartition(".")[2]]) for name, text in texts.items()}


async def _page(request: Request) -> Response:
    return Response(_files()["page.html"][0], media_type="text/html")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _files() or name.endswith(".html"):
        raise HTTPException(404, "there is no such file")
    content, kind = _files()[name]
    return Response(content, media_type=kind)


# ---- problems


async def _http_problem(request: Request, problem: HTTPException) -> Response:
    sentence = "there is no such page" if problem.detail == "Not Found" else problem.detail
    response = problem_response(request.headers, problem.status_code, sentence)
    response.headers.update(problem.headers or {})
    return response


async def _user_problem(request: Request, problem: UserError) -> Response:
    return JSONResponse({"error": _text(str(problem))}, 400)


async def _system_problem(request: Request, problem: OSError) -> Response:
    return JSONResponse({"error": _text(os_error_sentence(problem))}, 503)


async def _unexpected(request: Request, problem: Exception) -> Response:
    return JSONResponse({"error": f"this failed unexpectedly ({type(problem).__name__})"}, 500)


def _text(text: str) -> str:
    """Return text that can be sent: names of files need not be valid."""
    return text.encode(errors="backslashreplace").decode()


# ---- answers


class _Server:
    """Answers requests from a library of runs; all work is done in threads."""

    def __init__(self, library: Library, data: Sequence[str]) -> None:
        self._library, self._data = library, list(data)
        self._streams = 0
        self._uploads = asyncio.Semaphore(2)
        self._loading = asyncio.Lock()
        self._snapshots: Snapshots | None = None
        self._searches: Searches | None = None

    async def _run_of(self, request: Request) -> WatchedRun:
        watched = (await run_in_threadpool(self._library.runs)).get(request.path_params["name"])
        if watched is None:
            raise HTTPException(404, "there is no such run")
        return watched

    def _remembered(self, key: Any, version: Any, make: Callable[[], Any]) -> str:
        return self._library.remember(key, version, lambda: _dump(make()))

    async def _answer(self, key: Any, version: Any, make: Callable[[], Any]) -> Response:
        return _json(await run_in_threadpool(self._remembered, key, version, make))

    async def _answer_or_problem(self, watched: WatchedRun, answer: Callable[[], str]) -> Response:
        """Answer with what is missing, if anything is: a run may have no checkpoint yet, or be deleted meanwhile."""
        try:
            _refuse_damaged(watched)
            return _json(await run_in_threadpool(answer))
        except UserError as problem:
            missing = "" if watched.state.state == "damaged" else views.why_no_puzzles(watched)
            return JSONResponse({"problem": missing or _text(str(problem))})
        except OSError as problem:
            return JSONResponse({"problem": _text(os_error_sentence(problem, "read"))})
        except Exception:  # reading a folder while it is being deleted can raise any error
            if watched.run.config_file.exists():
                raise
            return JSONResponse({"problem": "its folder was deleted"})

    async def runs(self, request: Request) -> Response:
        """The table of all runs."""
        runs = await run_in_threadpool(self._library.runs)
        version = [watched.version for watched in runs.values()]
        return await self._answer("runs", version, lambda: {"runs": _newest_first(self._rows(list(runs.values())))})

    def _rows(self, runs: Sequence[WatchedRun]) -> list[dict[str, Any]]:
        return [
            self._library.remember(("row", watched.name), watched.version, partial(_row, watched)) for watched in runs
        ]

    async def table(self, request: Request) -> Response:
        """The runs that are shown, in their order, as CSV."""
        chosen = await self._chosen(request)
        text = await run_in_threadpool(lambda: views.table_csv(self._rows(chosen)))
        headers = {"content-disposition": 'attachment; filename="runs.csv"'}
        return PlainTextResponse(_text(text), media_type="text/csv", headers=headers)

    async def _chosen(self, request: Request) -> list[WatchedRun]:
        runs = await run_in_threadpool(self._library.runs)
        return [runs[name] for name in dict.fromkeys(request.query_params.getlist("run")) if name in runs]

    async def run(self, request: Request) -> Response:
        """One run: curves, warnings, the tail of its log."""
        watched = await self._run_of(request)
        return await self._answer(("run", watched.name), watched.version, partial(views.run_view, watched))

    async def compare(self, request: Request) -> Response:
        """Several runs over an axis."""
        chosen, given = await self._chosen(request), request.query_params.get("axis", "iterations")
        axis = next((axis for axis in views.AXES if axis == given), None)
        if axis is None:
            raise HTTPException(400, f"axis must be one of {', '.join(views.AXES)}")
        if len(chosen) > MAX_COMPARED:
            raise HTTPException(400, f"at most {MAX_COMPARED} runs can be compared")
        seeds = request.query_params.get("seeds") == "mean"
        names = tuple(watched.name for watched in chosen)
        version = [watched.version for watched in chosen]
        make = partial(views.compare_view, chosen, axis, seeds=seeds)
        return await self._answer(("compare", names, axis, seeds), version, make)

    async def events(self, request: Request) -> Response:
        """A stream of the versions of all runs, whenever one changes."""
        if self._streams >= MAX_STREAMS:
            raise HTTPException(503, "too many pages are open")
        return StreamingResponse(self._changes(request), media_type="text/event-stream")

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        self._streams += 1
        try:
            seen, sent = None, time.monotonic()
            while not (request.app.state.stopping or await request.is_disconnected()):
                runs = await run_in_threadpool(self._library.runs)
                versions = {name: watched.version for name, watched in runs.items()}
                if versions != seen:
                    yield f"data: {json.dumps(versions)}\n\n"
                    seen, sent = versions, time.monotonic()
                elif time.monotonic() - sent > SECONDS_BETWEEN_SIGNS:
                    yield ": here\n\n"
                    sent = time.monotonic()
                await asyncio.sleep(SECONDS_BETWEEN_EVENTS)
        finally:
            self._streams -= 1

    # the network

    async def _networks(self) -> "Snapshots":
        async with self._loading:
            if self._snapshots is None:
                self._snapshots = await run_in_threadpool(_load_snapshots)
        return self._snapshots

    async def policy(self, request: Request) -> Response:
        """What the policy of a run preferred."""
        watched, snapshots = await self._run_of(request), await self._networks()
        from unshuffle.serve.network import policy_view

        def answer() -> str:
            version = views.policy_version(watched)
            return self._remembered(("policy", watched.name), version, partial(policy_view, snapshots, watched.run))

        return await self._answer_or_problem(watched, answer)

    async def solved(self, request: Request) -> Response:
        """Puzzles as the network of the checkpoint nearest to an iteration solves them."""
        watched, iteration = await self._run_of(request), _whole(request, "at", None)
        snapshots = await self._networks()
        from unshuffle.serve.network import nearest_checkpoint, solved_view

        def answer() -> str:
            file = nearest_checkpoint(watched.run, iteration)
            make = partial(solved_view, snapshots, watched.run, int(file.stem))
            return self._remembered(("solved", file), file.stat().st_mtime_ns, make)

        return await self._answer_or_problem(watched, answer)

    async def puzzle(self, request: Request) -> Response:
        """A sample, by its number or by the name that it was given when it was sent, or one that is sent now."""
        watched, snapshots = await self._run_of(request), await self._networks()
        from unshuffle.serve.network import is_upload, new_puzzle, send_sample

        _refuse_damaged(watched)
        task, permutation = request.query_params.get("task") or None, _whole(request, "permutation", 0) or 0
        given = request.query_params.get("sample", "")
        if request.method == "POST":
            async with self._uploads:
                upload = await _read(request, MAX_UPLOAD)
                given = await run_in_threadpool(send_sample, snapshots, watched.run, task, upload)
        sample = given if is_upload(given) else _whole(request, "sample", 0) or 0
        return JSONResponse(await run_in_threadpool(new_puzzle, snapshots, watched.run, task, sample, permutation))

    async def answer(self, request: Request) -> Response:
        """How the network orders an arrangement."""
        watched, body = await self._run_of(request), await _read(request, MAX_ARRANGEMENT)
        try:
            values = json.loads(body)
            task, sample, arrangement = values["task"], values["sample"], values["arrangement"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise HTTPException(400, "give the task, the sample and the arrangement as JSON") from None
        numbers = arrangement if isinstance(arrangement, list) else [None]
        if (
            not isinstance(task, str)
            or type(sample) not in (int, str)
            or any(type(part) is not int for part in numbers)
        ):
            raise HTTPException(400, "the arrangement is a list of whole numbers, the sample a number or a name")
        snapshots = await self._networks()
        from unshuffle.serve.network import network_answer

        _refuse_damaged(watched)
        return JSONResponse(await run_in_threadpool(network_answer, snapshots, watched.run, task, sample, arrangement))

    # search

    async def _search(self) -> "Searches":
        async with self._loading:
            if self._searches is None:
                self._searches = await run_in_threadpool(_load_searches, self._library, self._data)
        return self._searches

    async def search_state(self, request: Request) -> Response:
        """The datasets and backbones to choose from, and how far the index of a choice is."""
        searches = await self._search()
        data, weights = request.query_params.get("data"), request.query_params.getlist("weights")[:2]
        text = request.query_params.get("text", "")
        return JSONResponse(await run_in_threadpool(searches.state, data, weights, text))

    async def search_item(self, request: Request) -> Response:
        """The neighbours of an item of a dataset."""
        searches, item = await self._search(), request.query_params.get("item", "")
        data, weights = request.query_params.get("data", ""), request.query_params.get("weights", "")
        return JSONResponse(await run_in_threadpool(searches.like_item, data, weights, item))

    async def search_picture(self, request: Request) -> Response:
        """The picture of an item."""
        searches, item = await self._search(), request.query_params.get("item", "")
        jpeg = await run_in_threadpool(searches.picture, request.query_params.get("data", ""), item)
        return Response(jpeg, media_type="image/jpeg")

    async def search_image(self, request: Request) -> Response:
        """The neighbours of an image that is sent."""
        data, weights = request.query_params.get("data", ""), request.query_params.get("weights", "")
        async with self._uploads:  # two at a time: each may take much memory
            image = await _read(request, MAX_UPLOAD)
            searches = await self._search()
            return JSONResponse(await run_in_threadpool(searches.like_image, data, weights, image))


def _newest_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -row["sort"].get("started", 0.0))


def _row(watched: WatchedRun) -> dict[str, Any]:
    return views.describe(watched)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _dump(value: Any) -> str:
    try:
        return _text(json.dumps(value, allow_nan=False))
    except ValueError:  # a browser reads no NaN
        return _text(json.dumps(_without_nan(value)))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _load_snapshots() -> "Snapshots":
    from unshuffle.serve.network import Snapshots

    return Snapshots()


def _load_searches(library: Library, data: Sequence[str]) -> "Searches":
    from unshuffle.serve.search import Searches

    return Searches(library, data)


def _refuse_damaged(watched: WatchedRun) -> None:
    if watched.state.state == "damaged":
        raise UserError(f"{watched.name} cannot be read: {watched.state.message}")


def _whole(request: Request, name: str, default: int | None) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise HTTPException(400, f"{name} must be a whole number")
    return int(text)


async def _read(request: Request, limit: int) -> bytes:
    """Return the body of a request, of which no more than the limit is ever in memory."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(SECONDS_FOR_UPLOAD):  # others wait for it
            with suppress(ClientDisconnect):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limit:
                        raise HTTPException(413, f"at most {limit:,} bytes are accepted")
                    chunks.append(chunk)
    except TimeoutError:
        raise HTTPException(408, f"the upload took more than {SECONDS_FOR_UPLOAD:.0f} s") from None
    return b"".join(chunks)
