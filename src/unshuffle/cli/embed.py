"""`unshuffle embed`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge

from unshuffle.cli.pack import print_left_out
from unshuffle.cli.parsing import POSITIONAL, parse, write_json
from unshuffle.config import FEATURE_BATCH, PRETRAINED, VIDEO_FRAMES, LimitsConfig, Pool
from unshuffle.options import to_dict
from unshuffle.wording import counted, features_sentence

if TYPE_CHECKING:  # both need torch, which takes seconds to import
    from unshuffle.data.dataset import LabelledDataset
    from unshuffle.models import Backbone


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Options of the commands that compute the features of data without labels."""

    data: Annotated[str, POSITIONAL]
    """An image or video file, a folder, flat or nested, a packed store, tar shards, a split list such as
    ucfTrainTestlist/trainlist01.txt, VOC2007/ImageSets/Main/trainval.txt for the objects of VOC, or
    synthetic:images:COUNT:SEED (synthetic:videos:…)."""
    weights: str = PRETRAINED
    """A run folder, a weights file, pretrained (the weights that come with the package), hf:OWNER/NAME (of the Hugging
    Face hub), alexnet, torchvision:NAME, timm:NAME, random or random:NAME."""
    architecture: str | None = None
    """Architecture of a weights file that does not name it and is not recognised: resnet34, timm:NAME ..."""
    download: bool = False
    """Download hf:OWNER/NAME if it is not in the Hugging Face cache of this machine, or not in its latest version."""
    pool: Pool = "grid"
    """How the last map (pool5) becomes a vector: avg is the mean of each channel, max its maximum, grid the means of
    its cells in a 3 x 3 grid, flat all numbers. grid and flat also say where things are in the image and find better
    neighbours; flat is the largest."""
    kind: Literal["auto", "images", "videos"] = "auto"
    """What to read; auto works if there are only images or only videos."""
    size: Annotated[int, Ge(1)] | None = None
    """Side in pixels of the square input of the backbone; by default the size that it is evaluated at."""
    frames: Annotated[int, Ge(1)] = VIDEO_FRAMES
    """Evenly spaced frames of each video; the video's features are the mean of theirs."""
    batch: Annotated[int, Ge(1)] = FEATURE_BATCH
    """Images in one forward pass; lower it if memory runs out."""
    workers: Annotated[int, Ge(1)] | None = None
    """Files read in parallel; by default one per CPU core."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of random weights."""
    json: Path | None = None
    """Write what was computed and the skipped files to this JSON file."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)

    def open(self) -> "tuple[Backbone, LabelledDataset]":
        """Return the backbone, and the data as squares for it."""
        from unshuffle.evaluation.features import find_backbone
        from unshuffle.evaluation.index import open_unlabelled

        backbone = find_backbone(self.weights, self.seed, self.architecture, self.download)
        options = {name: getattr(self, name) for name in ("kind", "size", "frames", "limits")}
        return backbone, open_unlabelled(backbone, self.data, **options)


@dataclass(frozen=True, kw_only=True)
class EmbedCommand(FeatureOptions):
    """Write the features of all images or videos of a dataset; started again after an interruption, it resumes."""

    out: Path
    """File to write: .npy (with the names beside it; also without a suffix), .parquet or .csv."""


def main(args: Sequence[str]) -> int:
    """Embed and print what was skipped."""
    command = parse(EmbedCommand, "embed", args)
    from unshuffle.accelerator import choose_device
    from unshuffle.evaluation.embed import embed_to_file, large_csv, output_file, skipped_file

    out, device = output_file(command.out.expanduser()), choose_device(command.device)
    backbone, data = command.open()
    embedded = embed_to_file(
        backbone, data, out, pool=command.pool, device=device, batch=command.batch, workers=command.workers
    )
    rows, skipped = counted(embedded.rows, data.kind), counted(len(embedded.skipped), "files")
    print(f"{rows}, {embedded.dimensions} features each, in {out}; {skipped} skipped")
    what = features_sentence(command.pool, backbone.architecture, command.weights, data.square.side)
    print(f"features: {what} (--pool {command.pool})")
    if hint := large_csv(out):
        print(f"note: {hint}")
    print_left_out(embedded.skipped, data.ignored, skipped_file(out))
    protocol = f"pool5 at {data.square.side} px, {command.pool}"
    write_json(command.json, "embed", protocol, to_dict(command), to_dict(embedded))
    return 0
