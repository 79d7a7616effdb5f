"""The peers of `peers.py`: the public jigsaw of the paper's author, and the same with common optimisations.

Both are written from a description of bbrattoli/JigsawPuzzlePytorch: the short side becomes 256 px, of which 255 are
kept; nine cells of 85 px; a random 64 px crop of each, made 75 px; 30 % of the images grayscale, every channel of every
tile shifted by -2 to 1, every tile normalised by its own mean and standard deviation; CaffeNet with LRN, fc6 of each
tile, fc7 and fc8.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Sampler
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as V

from unshuffle.data.store import Store

SHORT_SIDE, SQUARE, CELL, CROP, TILE = 256, 255, 85, 64, 75
TILES = 9
GRAYSCALE = 0.3
DARKEST, LIGHTEST = -2, 1  # offsets of a channel, both included

Sample = tuple[Tensor, int]
Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ImageReader:
    """Reads the images of one store: decoded from the files that it was packed from, or from the store itself."""

    store: Store
    folder: Path | None
    """Folder of the files; None reads the store."""

    def __len__(self) -> int:
        return len(self.store)

    def pillow(self, item: int) -> Image.Image:
        """Read an image for Pillow's transforms."""
        if self.folder is None:
            return Image.fromarray(self.store.read(item, [0])[0])
        with Image.open(self.folder / self.store.names[item]) as image:
            return image.convert("RGB")

    def tensor(self, item: int) -> Tensor:
        """Read an image as (3, H, W) bytes."""
        if self.folder is None:
            return torch.from_numpy(self.store.read(item, [0])[0]).permute(2, 0, 1)
        pixels: Tensor = decode_image(read_file(str(self.folder / self.store.names[item])), ImageReadMode.RGB)
        return pixels


class EndlessSampler(Sampler[int]):
    """Shuffles epoch after epoch without an end, so that the workers never idle between epochs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.count).tolist()


class PillowTiles(Dataset[Sample]):
    """Peer a: everything with Pillow in the workers, one tile at a time, floats to the device."""

    def __init__(self, images: ImageReader, permutations: Tensor) -> None:
        self.images, self.permutations = images, permutations
        self.square = transforms.Compose([transforms.Resize(SHORT_SIDE), transforms.RandomCrop(SQUARE)])
        self.tile = transforms.Compose(
            [
                transforms.RandomCrop(CROP),
                transforms.Resize((TILE, TILE)),
                jittered,
                transforms.ToTensor(),
                standardised,
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, item: int) -> Sample:
        image = self.square(self.images.pillow(item))
        if random.random() < GRAYSCALE:
            image = image.convert("L").convert("RGB")
        tiles = [self.tile(image.crop((x, y, x + CELL, y + CELL))) for y, x in corners()]
        label = random.randrange(len(self.permutations))
        return torch.stack([tiles[source] for source in self.permutations[label].tolist()]), label


def jittered(tile: Image.Image) -> Image.Image:
    """Shift each channel by a small random number."""
    offsets = np.random.randint(DARKEST, LIGHTEST + 1, 3)  # noqa: NPY002 - the DataLoader seeds this generator in every worker
    return Image.fromarray((np.asarray(tile).astype(np.int16) + offsets).clip(0, 255).astype(np.uint8))


def standardised(tile: Tensor) -> Tensor:
    """Subtract the mean of each channel and divide by its standard deviation, unless that is zero."""
    std, mean = torch.std_mean(tile, dim=(-2, -1), keepdim=True)
    return (tile - mean) / torch.where(std == 0, 1, std)


class TensorTiles(Dataset[Sample]):
    """Peer b: torchvision v2 on bytes, the nine tiles resized together; jitter and normalisation on the device."""

    def __init__(self, images: ImageReader, permutations: Tensor) -> None:
        self.images, self.permutations = images, permutations
        self.square = v2.Compose([v2.Resize(SHORT_SIDE), v2.RandomCrop(SQUARE), v2.RandomGrayscale(GRAYSCALE)])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, item: int) -> Sample:
        image = self.square(self.images.tensor(item))
        room = CELL - CROP + 1
        crops = [
            V.crop(image, y + random.randrange(room), x + random.randrange(room), CROP, CROP) for y, x in corners()
        ]
        label = random.randrange(len(self.permutations))
        permutation = self.permutations[label].tolist()
        return V.resize(torch.stack([crops[source] for source in permutation]), [TILE, TILE]), label


def corners() -> list[tuple[int, int]]:
    """Return top and left of the nine cells."""
    return [(row * CELL, column * CELL) for row in range(3) for column in range(3)]


class JigsawNetwork(nn.Module):
    """CaffeNet with LRN instead of batch normalisation; maps (B, 9, 3, 75, 75) tiles to (B, |Ψ|) logits."""

    def __init__(self, classes: int, loop: bool) -> None:
        super().__init__()
        self.loop = loop
        self.backbone = nn.Sequential(
            *(nn.Conv2d(3, 96, 11, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5)),
            *(nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(inplace=True)),
            *(nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5)),
            *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(inplace=True)),
            *(nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Flatten(), nn.Linear(256 * 3 * 3, 1024), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        )
        self.head = nn.Sequential(
            *(nn.Linear(TILES * 1024, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            nn.Linear(4096, classes),
        )

    def forward(self, tiles: Tensor) -> Tensor:
        """Return the logits, with one tile after another or all tiles in one batch."""
        if self.loop:
            fc6 = torch.cat([self.backbone(tile) for tile in tiles.unbind(1)], dim=1)
        else:
            fc6 = self.backbone(tiles.flatten(0, 1)).unflatten(0, tiles.shape[:2]).flatten(1)
        logits: Tensor = self.head(fc6)
        return logits


def plain_step(device: torch.device, classes: int) -> Step:
    """Peer a: tiles in a loop, in torch's default precision."""
    network = JigsawNetwork(classes, loop=True).to(device)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9, weight_decay=5e-4)

    def step(tiles: Tensor, labels: Tensor) -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(network(tiles), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.detach()

    return step


def tuned_step(device: torch.device, classes: int, compiled: bool) -> Step:
    """Peer b: tiles in one batch; on a GPU bf16, channels last, a fused optimiser, and compiled if asked for."""
    gpu = device.type == "cuda"
    network = JigsawNetwork(classes, loop=False).to(device)
    if gpu:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9, weight_decay=5e-4, fused=gpu)

    def loss_of(pixels: Tensor, labels: Tensor) -> Tensor:
        tiles = prepared(pixels)
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            return F.cross_entropy(network(tiles), labels)

    forward = torch.compile(loss_of) if compiled else loss_of

    def step(pixels: Tensor, labels: Tensor) -> Tensor:
        optimiser.zero_grad()
        loss = forward(pixels, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.detach()

    return step


def prepared(pixels: Tensor) -> Tensor:
    """Jitter and normalise a batch of tiles given as bytes, on their device."""
    offsets = torch.randint(DARKEST, LIGHTEST + 1, (*pixels.shape[:3], 1, 1), device=pixels.device)
    tiles = standardised((pixels.float() + offsets).clamp(0, 255))
    flat: Tensor = tiles.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return torch.unflatten(flat, 0, pixels.shape[:2])
