"""`unshuffle cache`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge
from rich.filesize import decimal

from unshuffle.cli.parsing import POSITIONAL, parse
from unshuffle.config import DataConfig
from unshuffle.errors import UserError
from unshuffle.wording import did_you_mean, printable


@dataclass(frozen=True)
class CacheCommand:
    """List what the cache holds, or clear it: packed data, indices and copies of tar shards, lists of skipped files."""

    action: Annotated[Literal["list", "clear"], POSITIONAL] = "list"
    """list: print name, size, source and last use of each entry; clear: delete entries."""
    names: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Entries to clear, by the names that list prints."""
    all: bool = False
    """Clear every entry."""
    older_than: Annotated[float, Ge(0)] | None = None
    """Clear the entries that were not used for this many days."""
    cache: Path = DataConfig.cache
    """Folder of the cache, as data.cache has it; files that unshuffle did not write there are left alone."""


def main(args: Sequence[str]) -> int:
    """List or clear."""
    command = parse(CacheCommand, "cache", args)
    from unshuffle.data.cache import entry_sentence, list_cache

    folder = command.cache.expanduser()
    entries = {entry.name: entry for entry in list_cache(folder)}
    if command.action == "list":
        if command.names or command.all or command.older_than is not None:
            raise UserError("names, --all and --older_than say what to delete: use them with unshuffle cache clear")
        print(f"{printable(str(folder))}: {decimal(sum(entry.size for entry in entries.values()))}")
        for entry in entries.values():
            print(f"  {printable(entry.name)}  {decimal(entry.size)}\n    {printable(entry_sentence(entry))}")
        return 0
    if sum((bool(command.names), command.all, command.older_than is not None)) != 1:
        raise UserError("say what to clear: give names (unshuffle cache lists them), --older_than DAYS, or --all")
    for name in command.names:
        if name not in entries:
            raise UserError(f"there is no {name} in {folder}{did_you_mean(name, entries)}: unshuffle cache lists all")
    days = command.older_than
    chosen = [
        entry
        for entry in entries.values()
        if command.all or entry.name in command.names or (days is not None and entry.idle_days > days)
    ]
    freed = 0
    for entry in chosen:
        size = entry.clear()
        freed += size
        print(f"deleted {printable(entry.name)}, {decimal(size)}")
    print(f"{decimal(freed)} freed in {printable(str(folder))}")
    return 0
