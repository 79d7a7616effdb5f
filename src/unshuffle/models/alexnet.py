"""AlexNet as torchvision has it, up to its last pooling."""

from torch import Tensor, nn

from unshuffle.models.normalisation import IMAGENET
from unshuffle.models.registry import Backbone, register_backbone


@register_backbone("alexnet")
class AlexNet(Backbone):
    """9216 features at 224 px. The weights have the names of torchvision's, `features.0.weight` and so on."""

    channels = 256
    eval_size = 224
    published_normalisation = IMAGENET

    def __init__(self) -> None:
        super().__init__()
        # torchvision's own would first draw 58 million weights of a classifier that nobody wants
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The pool5 map."""
        pool5: Tensor = self.features(images)
        return pool5

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """`conv1` to `conv5`."""
        stages: dict[str, Tensor] = {}
        for layer in self.features:
            images = layer(images)
            if isinstance(layer, nn.ReLU):
                stages[f"conv{len(stages) + 1}"] = images
        return stages
