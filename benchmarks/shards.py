"""Throughput of reading images from tar shards and from a packed store.

    python benchmarks/shards.py FOLDER [--count 4000] [--shards 8] [--short_side 256] [--batches 30] [--threads 2]
        [--repeats 7]

Makes shards and stores of the first images of a folder in a temporary folder, and reads training batches of 128 from
each, with all files in the page cache. With a GPU the shards' JPEGs are also decoded there. The routes are measured in
turn, several times; the first pass over a store also verifies its checksums.
Results go to results/shards_DEVICE.csv.
"""

import argparse
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import PIL
import torch
from table import write_table

from unshuffle.data.batches import BatchStream, Prefetcher, Samples
from unshuffle.data.decode import decode_batch
from unshuffle.data.inventory import take_inventory
from unshuffle.data.pack import PackOptions, pack
from unshuffle.data.shards import ShardOptions, open_shards
from unshuffle.data.source import EncodedImage, Source
from unshuffle.data.store import Encoding, Store

T = TypeVar("T")
BATCH = 128


def main() -> None:
    """Measure each route and write the table."""
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, Path(folder), device)
    note = f"{os.cpu_count()} cores, {args.threads} reading threads, Pillow {PIL.__version__}"
    write_table(f"shards_{device.type}", rows, device.type, f"{note}, load {os.getloadavg()[0]:.1f} at the end")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--short_side", type=int, default=256)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


def measure(args: argparse.Namespace, folder: Path, device: torch.device) -> list[dict[str, str]]:
    make_data(list(take_inventory(args.folder, "images").files.values())[: args.count], folder, args.shards)
    options = ShardOptions("images", args.short_side)
    raw, raw_seconds = timed(lambda: packed(folder, "raw", args))
    jpeg, jpeg_seconds = timed(lambda: packed(folder, "jpeg", args))
    shards, index_seconds = timed(lambda: open_shards(str(folder / "shards"), options, folder / "cache", False))
    _, open_seconds = timed(lambda: open_shards(str(folder / "shards"), options, folder / "cache", False))
    rows = [
        row("pack a store, raw", len(raw), [raw_seconds]),
        row("pack a store, jpeg", len(jpeg), [jpeg_seconds]),
        row("index the shards", len(shards), [index_seconds]),
        row("open the indexed shards", len(shards), [open_seconds]),
    ]
    stream = stream_of(shards, args)

    def encoded(step: int) -> list[EncodedImage]:
        return [image for item in stream.items(step) for image in shards.read_encoded(int(item), [0])]

    routes: dict[str, Callable[[], float]] = {
        "read the store, raw": lambda: read_all(stream_of(raw, args).batch, args),
        "read the store, jpeg": lambda: read_all(stream_of(jpeg, args).batch, args),
        "read the shards": lambda: read_all(stream_of(shards, args).batch, args),
        "read the shards, not decoded": lambda: read_all(encoded, args),
    }
    if device.type == "cuda":
        routes["read the shards, decode on the GPU"] = lambda: read_all(
            encoded, args, lambda batch: decode_batch(batch, device)
        )
    # in turn, so that other load on the machine affects all of them alike
    rounds = [{name: route() for name, route in routes.items()} for _ in range(args.repeats)]
    images = args.batches * BATCH
    return rows + [row(name, images, [seconds[name] for seconds in rounds]) for name in routes]


def make_data(paths: list[Path], folder: Path, shards: int) -> None:
    """Write the images as a folder of links and as tar shards."""
    (folder / "images").mkdir()
    (folder / "shards").mkdir()
    for number in range(shards):
        with tarfile.open(folder / "shards" / f"{number:04}.tar", "w") as tar:
            for index in range(number, len(paths), shards):
                name = f"{index:07}{paths[index].suffix}"
                tar.add(paths[index], name)
                (folder / "images" / name).symlink_to(paths[index].resolve())


def packed(folder: Path, encoding: Encoding, args: argparse.Namespace) -> Store:
    out = folder / encoding
    settings = PackOptions(short_side=args.short_side, encoding=encoding)
    return pack("images", folder / "images", out, workers=args.threads, progress=False, **settings)


def stream_of(source: Source, args: argparse.Namespace) -> BatchStream:
    return BatchStream(Samples(source, np.arange(len(source)), 1, args.short_side), BATCH, 0, "spatial")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    begin = time.perf_counter()
    return work(), time.perf_counter() - begin


def read_all(make: Callable[[int], T], args: argparse.Namespace, use: Callable[[T], object] = id) -> float:
    """Return the seconds to make all batches in threads and use each, after a first batch that does not count."""
    use(make(args.batches))
    begin = time.perf_counter()
    for batch in Prefetcher(make, 0, args.batches, args.threads):
        use(batch)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def row(what: str, images: int, seconds: list[float]) -> dict[str, str]:
    """Return a row with the median of the measurements, the slowest and the fastest."""
    return {
        "what": what,
        "images": str(images),
        "repeats": str(len(seconds)),
        "images_per_second": f"{images / median(seconds):.0f}",
        "slowest": f"{images / max(seconds):.0f}",
        "fastest": f"{images / min(seconds):.0f}",
    }


if __name__ == "__main__":
    main()
