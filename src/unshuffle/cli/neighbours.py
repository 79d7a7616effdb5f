"""`unshuffle neighbours`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Interval

from unshuffle.cli.embed import FeatureOptions
from unshuffle.cli.pack import print_left_out
from unshuffle.cli.parsing import parse, write_json
from unshuffle.config import NEAR_DUPLICATE, Pool
from unshuffle.options import to_dict
from unshuffle.wording import counted, listed, printable


@dataclass(frozen=True, kw_only=True)
class NeighboursCommand(FeatureOptions):
    """Show the nearest neighbours, near-duplicates and outliers of a folder: an HTML page and a contact sheet."""

    out: Path | None = None
    """HTML file to write, which replaces an earlier page; the contact sheet is the .png beside it. By default
    neighbours.html, or the next free of neighbours-2.html, …"""
    pool: Pool = "flat"
    """How the last map (pool5) becomes a vector: avg is the mean of each channel, max its maximum, grid the means of
    its cells in a 3 x 3 grid, flat all numbers, which finds the best neighbours."""
    threshold: Annotated[float, Interval(ge=-1, le=1)] = NEAR_DUPLICATE
    """Similarity from which two items are near-duplicates; 1 is the same picture, 0 an unrelated one."""


def main(args: Sequence[str]) -> int:
    """Compute the features, write the page and the sheet, and print what stands out."""
    command = parse(NeighboursCommand, "neighbours", args)
    from rich.console import Console
    from rich.filesize import decimal

    from unshuffle.accelerator import choose_device
    from unshuffle.data.inventory import write_skipped
    from unshuffle.evaluation.embed import skipped_file
    from unshuffle.evaluation.index import OUTLIER_NEIGHBOURS, build_index
    from unshuffle.report.similarity_page import neighbours_page, page_file

    out, device = page_file(command.out), choose_device(command.device)
    replaced = ", replacing the earlier one" if out.exists() else ""
    backbone, data = command.open()
    options = {name: getattr(command, name) for name in ("pool", "batch", "workers")}
    index = build_index(backbone, data, command.weights, device=device, console=Console(stderr=True), **options)
    page = neighbours_page(index, out, threshold=command.threshold)
    rows, skipped = counted(len(index), data.kind), counted(len(data.skipped), "files")
    print(f"{rows}, {index.features.shape[1]} features each; {skipped} skipped")
    print(f"features: {index.description} (--pool {command.pool})")
    copies, groups = sum(map(len, page.near_duplicates)), counted(len(page.near_duplicates), "groups")
    first = f", such as {listed(page.near_duplicates[0], 2)}" if copies else ""
    print(f"near-duplicates: {f'{copies} in {groups}{first}' if copies else 'none'}")
    nearest = min(OUTLIER_NEIGHBOURS, len(index) - 1)
    outliers = ", ".join(f"{printable(name)} ({value:.2f})" for name, value in page.outliers[:4])
    print(f"outliers (mean similarity to the {nearest} nearest): {outliers}")
    if data.skipped:
        write_skipped(skipped_file(out), data.skipped)
    print_left_out(data.skipped, data.ignored, skipped_file(out))
    for file in page.files:
        print(f"  {printable(str(file))}, {decimal(file.stat().st_size)}{replaced}")
    metrics = {
        **{"items": len(index), "dimensions": index.features.shape[1], "skipped": data.skipped},
        **{"near_duplicates": page.near_duplicates, "outliers": dict(page.outliers)},
    }
    write_json(command.json, "neighbours", f"cosine of centred pool5, {command.pool}", to_dict(command), metrics)
    return 0
