"""FCN-32s on a plain backbone: its classifier as convolutions, the scores interpolated back to pixels."""

import torch
from torch import Tensor, nn

from unshuffle.evaluation.features import to_floats
from unshuffle.evaluation.voc import CLASSES
from unshuffle.evaluation.voc_task import new_layer
from unshuffle.models import Backbone
from unshuffle.models.chain import Geometry, chain_of, first_convolution, geometry

LABELS = len(CLASSES) + 1
FC6 = 6
PADDING_IN_STRIDES = 100 / 32
"""The padding of conv1, 100 for CaffeNet's stride of 32: fc6 then fits into any image."""


class Fcn32(nn.Module):
    """From one image of bytes to a score of each label for each pixel."""

    def __init__(self, backbone: Backbone, hidden: int, deviation: float) -> None:
        super().__init__()
        self.normalise = backbone.normalise
        self.layers = chain_of(backbone)
        for layer in self.layers:
            if isinstance(layer, nn.MaxPool2d):
                layer.ceil_mode = True  # as in Caffe: the last pixels would have no score otherwise
        conv1 = first_convolution(self.layers)
        conv1.padding = (round(PADDING_IN_STRIDES * geometry(self.layers).stride),) * 2
        self.head = nn.Sequential(
            new_layer(nn.Conv2d(backbone.channels, hidden, FC6), deviation, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            new_layer(nn.Conv2d(hidden, hidden, 1), deviation, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            new_layer(nn.Conv2d(hidden, LABELS, 1), 0.0, 0.0),
        )
        self.geometry = geometry([*self.layers, *self.head])

    def forward(self, image: Tensor) -> Tensor:
        """(H, W, 3) bytes to (21, H, W) scores."""
        scores = self.head(self.layers(self.normalise(to_floats(image[None]))))[0]
        rows, columns = (
            interpolation(self.geometry, cells, pixels).to(scores)
            for cells, pixels in zip(scores.shape[1:], image.shape[:2], strict=True)
        )
        pixels: Tensor = rows @ scores @ columns.T
        return pixels


def interpolation(where: Geometry, cells: int, pixels: int) -> Tensor:
    """(pixels, cells) weights of linear interpolation between the cells' centres.

    Along each side this is what FCN's fixed deconvolution and crop do (63 x 63, stride 32, offset 18 for CaffeNet).
    """
    centres = where.stride * torch.arange(cells) + where.centre
    distances = (torch.arange(pixels)[:, None] - centres).abs() / where.stride
    return (1 - distances).clamp(min=0)
