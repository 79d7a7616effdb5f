"""How images in [0, 1] are normalised before a backbone sees them; a backbone's file says it in words."""

import re
from dataclasses import dataclass

from torch import Tensor

from unshuffle.data.shuffle import normalise
from unshuffle.errors import UserError

_PER_IMAGE = "per image and channel: mean 0, deviation 1"
_NUMBERS = re.compile(
    r"per channel: mean ([\d.e+-]+) ([\d.e+-]+) ([\d.e+-]+), deviation ([\d.e+-]+) ([\d.e+-]+) ([\d.e+-]+)"
)


@dataclass(frozen=True)
class Normalisation:
    """The mean to subtract and the deviation to divide by, for each channel; without them each image's own."""

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) in [0, 1] to what a backbone takes."""
        if not self.mean:
            return normalise(images)
        mean, deviation = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.deviation))
        return (images - mean) / deviation

    def __str__(self) -> str:
        if not self.mean:
            return _PER_IMAGE
        mean, deviation = (" ".join(map(str, values)) for values in (self.mean, self.deviation))
        return f"per channel: mean {mean}, deviation {deviation}"

    @classmethod
    def parse(cls, words: str) -> "Normalisation":
        """What `str` wrote."""
        if words == _PER_IMAGE:
            return PER_IMAGE
        found = _NUMBERS.fullmatch(words)
        if found is None:
            raise UserError(f"the weights' normalisation is not known here: {words}")
        numbers = tuple(map(float, found.groups()))
        return cls(numbers[:3], numbers[3:])


PER_IMAGE = Normalisation()
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
