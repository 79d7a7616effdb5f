"""Alone a synchronised normalisation is a plain one; `tests/training/test_distributed.py` has it among others."""

import copy

import torch
from torch import nn

from unshuffle.models import build_backbone
from unshuffle.models.norm import SynchronisedBatchNorm2d, synchronise


def test_the_names_and_the_outputs_stay() -> None:
    torch.manual_seed(0)
    plain = build_backbone("resnet18")
    with torch.no_grad():
        plain(torch.randn(4, 3, 32, 32))
    synchronised = copy.deepcopy(plain)
    synchronise(synchronised)
    layers = [layer for layer in synchronised.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(layers) == 20
    assert all(isinstance(layer, SynchronisedBatchNorm2d) for layer in layers)
    images = torch.randn(4, 3, 32, 32)
    for mode in (True, False):
        assert torch.equal(synchronised.train(mode)(images), plain.train(mode)(images))
    state = synchronised.state_dict()
    assert list(state) == list(plain.state_dict())
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
