"""Copies of remote shards on this machine's disk: whole, fetched ahead, and never more than so many bytes."""

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from unshuffle.data.addresses import ShardFile, patiently, reading
from unshuffle.errors import UserError

CONNECTIONS = 4
FORGOTTEN = 3600  # seconds after which the unfinished copy of a killed process is deleted


class ShardCache:
    """A folder of whole shards; the longest unused ones make room for new ones. Safe to use from threads."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._fetches: dict[str, Future[Path]] = {}
        self._coming = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="shard")
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("*.part"):
            if time.time() - part.stat().st_mtime > FORGOTTEN:
                part.unlink(missing_ok=True)

    def read(self, file: ShardFile, offset: int, length: int) -> bytes:
        """Some bytes of a shard, once all of it is here."""
        while True:
            path = self.ahead(file).result()
            try:
                os.utime(path)
                return read_local(path, offset, length)
            except FileNotFoundError:  # another process made room for a shard of its own
                continue

    def ahead(self, file: ShardFile) -> "Future[Path]":
        """Begin to fetch a shard, unless it is here or on its way."""
        with self._lock:
            fetch = self._fetches.get(file.digest)
            if fetch is None or (fetch.done() and (fetch.exception() or not fetch.result().exists())):
                fetch = self._fetches[file.digest] = self._pool.submit(self._fetch, file)
            return fetch

    def _fetch(self, file: ShardFile) -> Path:
        path = self.folder / f"{file.digest}.tar"
        if path.exists():
            return path
        part = self.folder / f"{file.digest}.{os.getpid()}.part"
        with self._lock:
            self._coming += file.size
        try:
            self._make_room()
            with reading(f"{file.address}, copied to {self.folder},"):
                patiently(lambda: file.fs.get_file(file.path, str(part)))
            if part.stat().st_size != file.size:
                raise UserError(f"{file.address} has changed since it was looked up, or its copy broke off")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
            with self._lock:
                self._coming -= file.size
        return path

    def _make_room(self) -> None:
        with self._lock:
            copies = sorted(_last_use_and_size(path) for path in self.folder.glob("*.tar"))
            held = sum(size for _, size, _ in copies)
            for _, freed, path in copies:
                if held + self._coming <= self.limit:
                    break
                path.unlink(missing_ok=True)
                held -= freed


def _last_use_and_size(path: Path) -> tuple[float, int, Path]:
    try:
        status = path.stat()
    except FileNotFoundError:  # another process has just deleted it
        return 0.0, 0, path
    return status.st_mtime, status.st_size, path


def read_local(path: Path, offset: int, length: int) -> bytes:
    """Some bytes of a file."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
