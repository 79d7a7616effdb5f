"""Residual backbones through torchvision; their global average stands for pool5."""

from torch import Tensor, nn

from unshuffle.models.normalisation import IMAGENET
from unshuffle.models.registry import Backbone, register_backbone


class ResNet(Backbone):
    """A torchvision ResNet without its classifier: (N, channels, 1, 1)."""

    eval_size = 224
    published_normalisation = IMAGENET

    def __init__(self, name: str) -> None:
        super().__init__()
        import torchvision  # heavy, and only these backbones need it

        network = torchvision.models.get_model(name, weights=None)
        self.channels = network.fc.in_features
        network.fc = nn.Identity()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """The average over the last map."""
        average: Tensor = self.network.avgpool(self.stages(images)["layer4"])
        return average

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """`layer1` to `layer4`."""
        network, stages = self.network, {}
        maps = network.maxpool(network.relu(network.bn1(network.conv1(images))))
        for name in ("layer1", "layer2", "layer3", "layer4"):
            maps = stages[name] = network.get_submodule(name)(maps)
        return stages

    def forms(self) -> dict[str, nn.Module]:
        """Also under torchvision's own names."""
        return {"unshuffle": self, "torchvision": self.network}


@register_backbone("resnet18")
def resnet18() -> ResNet:
    """512 features."""
    return ResNet("resnet18")


@register_backbone("resnet50")
def resnet50() -> ResNet:
    """2048 features."""
    return ResNet("resnet50")
