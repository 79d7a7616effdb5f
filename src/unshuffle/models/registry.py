"""The registry of backbones: one line registers a trunk, its name then works everywhere."""

from collections.abc import Callable

from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models.normalisation import PER_IMAGE, Normalisation


class Backbone(nn.Module):
    """A trunk: (N, 3, H, W) images to the (N, channels, h, w) map that the paper calls pool5."""

    channels: int
    eval_size: int = 227
    """Input side at evaluation, when nothing else is said."""
    normalisation: Normalisation = PER_IMAGE
    """How the weights want their images; a new trunk is trained on our own crops."""

    def forward(self, images: Tensor) -> Tensor:
        """The pool5 map."""
        raise NotImplementedError

    def normalise(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) images in [0, 1] as these weights want them."""
        return self.normalisation(images)

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """The maps on the way to pool5 by their names, the first one first, after their ReLU and before their pool."""
        return {"pool5": self(images)}

    def training_pass(self, images: Tensor) -> Tensor:
        """The pool5 map in training; a trunk may have a faster way on some device, with the same result."""
        maps: Tensor = self(images)
        return maps

    def for_evaluation(self) -> "Backbone":
        """Put the trunk into the form that evaluations use; most trunks have only one form."""
        return self.eval()


BACKBONES: dict[str, Callable[[], Backbone]] = {}


def register_backbone(name: str) -> Callable[[Callable[[], Backbone]], Callable[[], Backbone]]:
    """Make a class or function that builds a trunk available under a name."""

    def register(build: Callable[[], Backbone]) -> Callable[[], Backbone]:
        assert name not in BACKBONES, f"backbone {name} is registered twice"
        BACKBONES[name] = build
        return build

    return register


def build_backbone(name: str) -> Backbone:
    """A new trunk with random weights."""
    if name not in BACKBONES:
        raise UserError(f"there is no backbone '{name}'; there are {', '.join(sorted(BACKBONES))}")
    return BACKBONES[name]()
