"""The backbone of the author's public jigsaw network: CaffeNet with local response normalisation in place of BN."""

from collections import OrderedDict

from torch import Tensor, nn

from unshuffle.models.registry import Backbone, register_backbone, sequential


@register_backbone("caffenet-lrn")
class CaffeNetLrn(Backbone):
    """The shapes are those of `caffenet`: 2304 features at 75 px, 9216 at 227 px with conv1 stride 4."""

    channels = 256

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 96, 11, stride=2)
        self.conv2 = nn.Conv2d(96, 256, 5, padding=2, groups=2)
        self.conv3 = nn.Conv2d(256, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 384, 3, padding=1, groups=2)
        self.conv5 = nn.Conv2d(384, 256, 3, padding=1, groups=2)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2)
        self.lrn = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)

    def forward(self, images: Tensor) -> Tensor:
        """The pool5 map."""
        pool5: Tensor = self.pool(self.stages(images)["conv5"])
        return pool5

    def stages(self, images: Tensor) -> dict[str, Tensor]:
        """`conv1` to `conv5`."""
        conv1 = self.relu(self.conv1(images))
        conv2 = self.relu(self.conv2(self.lrn(self.pool(conv1))))
        conv3 = self.relu(self.conv3(self.lrn(self.pool(conv2))))
        conv4 = self.relu(self.conv4(conv3))
        return {"conv1": conv1, "conv2": conv2, "conv3": conv3, "conv4": conv4, "conv5": self.relu(self.conv5(conv4))}

    def forms(self) -> dict[str, nn.Module]:
        """Also under the names of the author's files, `conv.conv1_s1.weight` and so on."""
        relu, pool, lrn = self.relu, self.pool, self.lrn
        convs = [self.conv1, self.conv2, self.conv3, self.conv4, self.conv5]
        author = nn.Sequential(OrderedDict((f"conv{number}_s1", conv) for number, conv in enumerate(convs, 1)))
        early = [self.conv1, relu, pool, lrn, self.conv2, relu, pool, lrn]
        return {
            "unshuffle": self,
            "torchvision": sequential(*early, self.conv3, relu, self.conv4, relu, self.conv5, relu, pool),
            "author": nn.ModuleDict({"conv": author}),
        }

    def for_evaluation(self) -> "CaffeNetLrn":
        """Conv1 takes stride 4, as in all of the paper's evaluations."""
        self.conv1.stride = (4, 4)
        return self.eval()
