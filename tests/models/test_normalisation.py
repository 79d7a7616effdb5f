import numpy as np
import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.models import build_backbone
from unshuffle.models.normalisation import IMAGENET, PER_IMAGE, Normalisation


def test_each_image_by_its_own_figures() -> None:
    images = torch.rand(3, 3, 8, 9)
    array = images.double().numpy()
    expected = (array - array.mean(axis=(2, 3), keepdims=True)) / array.std(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(PER_IMAGE(images), expected, atol=1e-5)


def test_all_images_by_given_figures() -> None:
    images = torch.rand(2, 3, 4, 5)
    ours = Normalisation((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(images)
    for channel, (mean, deviation) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 4.0)]):
        np.testing.assert_allclose(ours[:, channel], (images[:, channel] - mean) / deviation, rtol=1e-6)


@pytest.mark.parametrize("one", [PER_IMAGE, IMAGENET, Normalisation((0.5, 0.0, 1e-05), (1.0, 2.5, 3.0))])
def test_words_and_back(one: Normalisation) -> None:
    assert Normalisation.parse(str(one)) == one


def test_other_words() -> None:
    with pytest.raises(UserError, match="not known here: by hand"):
        Normalisation.parse("by hand")


def test_a_backbone_follows_its_weights() -> None:
    backbone, images = build_backbone("tiny"), torch.rand(2, 3, 8, 8)
    assert torch.equal(backbone.normalise(images), PER_IMAGE(images))
    backbone.normalisation = IMAGENET
    assert torch.equal(backbone.normalise(images), IMAGENET(images))
