"""`unshuffle embed`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from unshuffle.cli.pack import print_left_out
from unshuffle.cli.parsing import POSITIONAL, parse, write_json
from unshuffle.config import LimitsConfig
from unshuffle.options import to_dict
from unshuffle.wording import counted


@dataclass(frozen=True)
class EmbedCommand:
    """Write the features of all images or videos of a dataset; started again after an interruption, it resumes."""

    data: Annotated[str, POSITIONAL]
    """A folder, flat or nested, a packed store, tar shards, a split list such as ucfTrainTestlist/trainlist01.txt,
    VOC2007/ImageSets/Main/trainval.txt for the objects of VOC, or synthetic:images:COUNT:SEED (synthetic:videos:…)."""
    out: Path
    """File to write: .npy (with the names beside it), .parquet or .csv."""
    weights: str
    """A run folder, a weights file, pretrained, alexnet, torchvision:NAME, timm:NAME, random or random:NAME."""
    kind: Literal["auto", "images", "videos"] = "auto"
    """What to read; auto works if there are only images or only videos."""
    size: Annotated[int, Ge(1)] | None = None
    """Side in pixels of the square input of the backbone; by default the size that it is evaluated at."""
    frames: Annotated[int, Ge(1)] = 10
    """Evenly spaced frames of each video; the video's features are the mean of theirs."""
    batch: Annotated[int, Ge(1)] = 64
    """Images in one forward pass; lower it if memory runs out."""
    workers: Annotated[int, Ge(1)] | None = None
    """Files read in parallel; by default one per CPU core."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of random weights."""
    json: Path | None = None
    """Write the number of rows and features and the skipped files to this JSON file."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)


def main(args: Sequence[str]) -> int:
    """Embed and print what was skipped."""
    command = parse(EmbedCommand, "embed", args)
    from unshuffle.accelerator import choose_device
    from unshuffle.data.dataset import Square, open_dataset
    from unshuffle.data.media import check_short_side
    from unshuffle.evaluation import embed as embedding
    from unshuffle.evaluation.features import find_backbone

    backbone, out = find_backbone(command.weights, command.seed), command.out.expanduser()
    size, device = command.size or backbone.eval_size, choose_device(command.device)
    check_short_side(size)
    data = open_dataset(
        command.data,
        kind=command.kind,
        labelled=False,
        square=Square(size),
        frames=command.frames,
        limits=command.limits,
    )
    embedded = embedding.embed(backbone, data, out, device=device, batch=command.batch, workers=command.workers)
    rows, skipped = counted(embedded.rows, data.kind), counted(len(embedded.skipped), "files")
    print(f"{rows}, {embedded.dimensions} features each, in {out}; {skipped} skipped")
    print_left_out(embedded.skipped, data.ignored, embedding.skipped_file(out))
    write_json(command.json, "embed", f"pool5 at {size} px", to_dict(command), to_dict(embedded))
    return 0
