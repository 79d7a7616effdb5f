import numpy as np
import torch
from torch.nn import functional as F

from unshuffle.models import build_backbone
from unshuffle.models.ordering import backbone_features


def slow_lrn(maps: np.ndarray) -> np.ndarray:
    """Caffe's formula: over 5 channels, α / 5 of the sum of squares."""
    result = np.empty_like(maps)
    for channel in range(maps.shape[1]):
        window = maps[:, max(0, channel - 2) : channel + 3]
        result[:, channel] = maps[:, channel] / (1 + 1e-4 / 5 * (window**2).sum(axis=1)) ** 0.75
    return result


def test_against_the_layer_table() -> None:
    backbone = build_backbone("caffenet-lrn").eval()
    weights = backbone.state_dict()
    with torch.no_grad():
        images = 300 * torch.randn(1, 3, 75, 75)  # large enough for the response normalisation to matter
        maps = images
        for number, (stride, padding, groups) in enumerate([(2, 0, 1), (1, 2, 2), (1, 1, 1), (1, 1, 2), (1, 1, 2)], 1):
            weight, bias = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
            maps = F.conv2d(maps, weight, bias, stride, padding, groups=groups).relu()
            if number in (1, 2, 5):
                maps = F.max_pool2d(maps, 3, 2)
            if number in (1, 2):
                maps = torch.from_numpy(slow_lrn(maps.double().numpy())).float()
        ours = backbone(images)
    assert not torch.allclose(ours, maps.new_zeros(()))
    torch.testing.assert_close(ours, maps, rtol=1e-4, atol=1e-4 * float(maps.max()))


def test_features_in_training_and_at_evaluation() -> None:
    backbone = build_backbone("caffenet-lrn")
    assert backbone_features(backbone, 75) == 2304
    assert backbone_features(backbone.for_evaluation(), 227) == 9216
