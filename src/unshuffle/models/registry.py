"""The registry of backbones: one line registers a backbone, its name then works everywhere."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.models.normalisation import PER_IMAGE, Normalisation


class Backbone(nn.Module):
    """A backbone: (N, 3, H, W) images to the (N, channels, h, w) map that the paper calls pool5."""

    architecture: str = ""
    """The name it was built by."""
    metadata: Mapping[str, str] = MappingProxyType({})
    """What the file of its weights says."""
    channels: int
    eval_size: int = 227
    """Input side at evaluation, when nothing else is said."""
    normalisation: Normalisation = PER_IMAGE
    """How the weights want their images; a new backbone is trained on our own crops."""
    published_normalisation: Normalisation = PER_IMAGE
    """The same for files that do not say it, which others have made."""

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
        """The pool5 map in training; a backbone may have a faster way on some device, with the same result."""
        maps: Tensor = self(images)
        return maps

    def for_evaluation(self) -> "Backbone":
        """Put the backbone into the form that evaluations use; most backbones have only one form."""
        return self.eval()

    def forms(self) -> dict[str, nn.Module]:
        """The same layers, nested as in the files of other programs; `torchvision` is the form to hand on."""
        return {"unshuffle": self, "torchvision": self}


def sequential(*layers: nn.Module) -> nn.Module:
    """Layers one after another, as `features` of a module, the way torchvision writes a plain network."""
    flat: list[nn.Module] = []
    for layer in layers:
        flat += layer if isinstance(layer, nn.Sequential) else [layer]
    features = [layer for layer in flat if not isinstance(layer, nn.Identity)]  # which folding leaves behind
    return nn.Sequential(OrderedDict(features=nn.Sequential(*features)))


BACKBONES: dict[str, Callable[[], Backbone]] = {}
FAMILIES: dict[str, Callable[[str], Backbone]] = {}


def register_backbone(name: str) -> Callable[[Callable[[], Backbone]], Callable[[], Backbone]]:
    """Make a class or function that builds a backbone available under a name."""

    def register(build: Callable[[], Backbone]) -> Callable[[], Backbone]:
        assert name not in BACKBONES, f"backbone {name} is registered twice"
        BACKBONES[name] = build
        return build

    return register


def register_family(name: str) -> Callable[[Callable[[str], Backbone]], Callable[[str], Backbone]]:
    """Make a function that builds backbones by their names available as `name:...`."""

    def register(build: Callable[[str], Backbone]) -> Callable[[str], Backbone]:
        assert name not in FAMILIES, f"family {name} is registered twice"
        FAMILIES[name] = build
        return build

    return register


def build_backbone(name: str) -> Backbone:
    """A new backbone with random weights."""
    family, _, member = name.partition(":")
    if family in FAMILIES and member:
        backbone = FAMILIES[family](member)
    elif name in BACKBONES:
        backbone = BACKBONES[name]()
    else:
        known = [*sorted(BACKBONES), *(f"{family}:NAME" for family in sorted(FAMILIES))]
        raise UserError(f"there is no backbone '{name}'; there are {', '.join(known)}")
    backbone.architecture = name
    return backbone
