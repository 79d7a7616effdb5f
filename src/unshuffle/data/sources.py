"""The images and videos that a config names: folders, packed stores, tar shards or the synthetic world, opened once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unshuffle.config import Addresses, Config, addresses
from unshuffle.data.inventory import SKIPPED_LIST, skipped_file, write_skipped
from unshuffle.data.pack import cached_store
from unshuffle.data.shard_files import is_shards
from unshuffle.data.shards import ShardOptions, ShardSource, open_shards
from unshuffle.data.source import FlatSource, Items, Pixels, Skipped, Source
from unshuffle.data.splits import find_split_list
from unshuffle.data.store import Kind, Store
from unshuffle.data.synthetic import synthetic_clips, synthetic_images
from unshuffle.errors import UserError
from unshuffle.randomness import stream_seed
from unshuffle.wording import counted


@dataclass(frozen=True)
class SourceFacts:
    """What was found at an address; `wording.source_sentence` tells it."""

    medium: Kind
    address: str | None
    """None for the synthetic world."""
    items: int
    skipped: int
    storage: Literal["store", "shards", "synthetic"]
    short_side: int
    path: str | None = None
    """The packed store."""
    folder: str | None = None
    """The folder that was packed, if the store was not given itself."""
    files: int = 0
    """Files that the items come from; fewer than items if long videos are cut into windows. 0 for shards."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Other files in the folder, by extension."""
    shards: int = 0
    frames: int = 0
    """Frames of each clip of the synthetic world."""


class Concatenation:
    """Several sources as one, their items one after another.

    A name begins with the number of its source, which does not change if a folder is moved or renamed.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self.names = [f"{number}/{name}" for number, source in enumerate(sources, 1) for name in source.names]
        self.origins = [f"{number}/{name}" for number, source in enumerate(sources, 1) for name in origins(source)]
        """The file of each item."""
        self._starts = np.cumsum([0, *map(len, self.sources)])

    def __len__(self) -> int:
        return len(self.names)

    def _find(self, item: int) -> tuple[Source, int]:
        number = int(np.searchsorted(self._starts, item, side="right")) - 1
        return self.sources[number], item - int(self._starts[number])

    def num_frames(self, item: int) -> int:
        """Number of frames of one item: 1 for an image."""
        source, position = self._find(item)
        return source.num_frames(position)

    def size(self, item: int) -> tuple[int, int]:
        """Height and width of an item's frames."""
        source, position = self._find(item)
        return source.size(position)

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        """Read the chosen frames of one item, as (len(frames), height, width, 3) RGB."""
        source, position = self._find(item)
        return source.read(position, frames)

    @property
    def flat_bytes(self) -> int | None:
        """Size of all frames in bytes; None if some are compressed."""
        sizes = [source.flat_bytes if isinstance(source, FlatSource) else None for source in self.sources]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def flat(self) -> tuple[Pixels, Items]:
        """Return the bytes of all frames, and the offset of each item."""
        parts = [source.flat() for source in self.sources if isinstance(source, FlatSource)]
        begins = np.cumsum([0, *(len(data) for data, _ in parts)])
        offsets = [offset + begin for (_, offset), begin in zip(parts, begins[:-1], strict=True)]
        return np.concatenate([data for data, _ in parts]), np.concatenate(offsets)


def origins(source: Source) -> Sequence[str]:
    """Return the name of the file that each item comes from: of a long video, the same for several items."""
    return source.origins if isinstance(source, Store | Concatenation) else source.names


class Media:
    """The images and videos of a run, each opened when a task asks for it."""

    def __init__(self, config: Config, *, min_frames: int = 1, progress: bool = True) -> None:
        """Clips with fewer than `min_frames` frames are skipped."""
        self.config, self.min_frames, self.progress = config, min_frames, progress
        self.facts: list[SourceFacts] = []
        self.skipped: list[Skipped] = []

    @cached_property
    def images(self) -> Source | None:
        """The given images; without any data, those of the synthetic world."""
        if self.config.images is not None:
            return self._open("images", self.config.images)
        if self.config.videos is not None:
            return None
        world = self.config.synthetic
        self.facts.append(SourceFacts("images", None, world.images, 0, "synthetic", world.image_size))
        return synthetic_images(world.images, world.image_size, self._world_seed("images"))

    @cached_property
    def videos(self) -> tuple[Source, Items] | None:
        """The given videos; without any data, clips of the synthetic world. With the items that are long enough."""
        if self.config.videos is not None:
            return self._long_enough(self._open("videos", self.config.videos))
        if self.config.images is not None:
            return None
        world = self.config.synthetic
        self.facts.append(
            SourceFacts("videos", None, world.clips, 0, "synthetic", world.frame_size, frames=world.clip_frames)
        )
        return self._long_enough(
            synthetic_clips(world.clips, world.frame_size, world.clip_frames, self._world_seed("clips"))
        )

    @cached_property
    def val_images(self) -> Source | None:
        """Images that are given for validation alone."""
        address = self.config.data.val_images
        return None if address is None else self._open("images", address)

    @cached_property
    def val_videos(self) -> tuple[Source, Items] | None:
        """Videos that are given for validation alone."""
        address = self.config.data.val_videos
        return None if address is None else self._long_enough(self._open("videos", address))

    @cached_property
    def test_images(self) -> Source | None:
        """Images that are given as the pretext test set."""
        address = self.config.data.test_images
        return None if address is None else self._open("images", address)

    @cached_property
    def test_videos(self) -> tuple[Source, Items] | None:
        """Videos that are given as the pretext test set."""
        address = self.config.data.test_videos
        return None if address is None else self._long_enough(self._open("videos", address))

    def _world_seed(self, kind: str) -> int:
        return int(stream_seed(self.config.seed, "world", kind).generate_state(1)[0])

    def _open(self, medium: Kind, given: Addresses) -> Source:
        """Open the source at an address; those at several addresses become one."""
        several, before, sources, files = len(addresses(given)) > 1, len(self.skipped), [], 0
        for number, address in enumerate(addresses(given), 1):
            if several and is_shards(address):
                raise UserError(
                    f"{address} means tar shards, which are one address: join several by braces ({{a,b}}.tar), or give "
                    "folders and packed stores only"
                )
            source, count = self._open_one(medium, address, f"{number}/" if several else "")
            sources.append(source)
            files += count
        self._check_bad_fraction(self.skipped[before:], files, medium)
        return Concatenation(sources) if several else sources[0]

    def _open_one(self, medium: Kind, address: str, prefix: str) -> tuple[Source, int]:
        """Open the source at one address; also return the number of its files, skipped ones included."""
        data = self.config.data
        short_side = data.image_short_side if medium == "images" else data.frame_short_side
        source: Store | ShardSource
        details: dict[str, Any]
        if is_shards(address):
            options = ShardOptions(
                medium, short_side, data.frame_every, data.shard_window, data.shard_cache_gb, data.limits
            )
            source = open_shards(address, options, data.cache.expanduser(), self.progress)
            details = {"storage": "shards", "short_side": short_side, "shards": len(source.files)}
        else:
            source, details = self._open_folder(medium, Path(address).expanduser(), short_side)
        self.facts.append(SourceFacts(medium, address, len(source), len(source.skipped), **details))
        self.skipped.extend((f"{prefix}{name}", reason) for name, reason in source.skipped)
        return source, details.get("files", len(source)) + len(source.skipped)

    def _open_folder(self, medium: Kind, folder: Path, short_side: int) -> tuple[Store, dict[str, Any]]:
        data = self.config.data
        split = find_split_list(folder) if medium == "videos" else None
        if split is not None and Store.is_store(split.folder):
            raise UserError(f"{folder} lists videos of the packed store {split.folder}: give the folder of video files")
        root = folder if split is None else split.folder
        store = cached_store(
            medium,
            root,
            data.cache.expanduser(),
            short_side=short_side,
            encoding=data.encoding,
            max_raw_gb=data.max_raw_gb,
            every=data.frame_every,
            clip_frames=data.clip_frames,
            clips_per_video=data.clips_per_video,
            only=None if split is None else split.names,
            limits=data.limits,
            progress=self.progress,
        )
        return store, {
            "storage": "store",
            "short_side": store.header.short_side,
            "path": str(store.path),
            "folder": None if store.path == root else str(root),
            "files": len(set(store.origins)),
            "ignored": dict(store.ignored),
        }

    def _long_enough(self, clips: Source) -> tuple[Source, Items]:
        """Return the clips with enough frames; the others are listed as skipped."""
        counts = np.array([clips.num_frames(item) for item in range(len(clips))])
        skipped = [
            (clips.names[item], f"{counted(counts[item], 'frames')}, but {self.min_frames} are needed")
            for item in np.flatnonzero(counts < self.min_frames).tolist()
        ]
        self.skipped.extend(skipped)
        self._check_bad_fraction(skipped, len(clips), "clips")
        return clips, np.flatnonzero(counts >= self.min_frames)

    def _check_bad_fraction(self, bad: Sequence[Skipped], total: int, kind: str) -> None:
        limit = self.config.data.max_bad_fraction
        if len(bad) > limit * total:
            reason, count = Counter(reason for _, reason in bad).most_common(1)[0]
            name = next(name for name, why in bad if why == reason)
            example = f"{name}: {reason}" if count == 1 else f"{count} files, e.g. {name}: {reason}"
            file = write_skipped(self.skipped_file, self.skipped)
            raise UserError(
                f"{len(bad)} of {total} {kind} cannot be used, more than data.max_bad_fraction = {limit:g} allows "
                f"({example}); all are listed in {file}. Remove or repair them, or raise --data.max_bad_fraction"
            )

    @property
    def skipped_file(self) -> Path:
        """File for the list of what cannot be used: in the run folder if that is given, otherwise beside the cache."""
        config = self.config
        if config.out is not None:
            return config.out.expanduser() / SKIPPED_LIST
        return skipped_file(addresses(config.images or config.videos or "data")[0], config.data.cache)
