"""How the weights move: a rate and an optimiser for the backbone and each head, one schedule for all."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from unshuffle.config import GroupConfig, OptimConfig
from unshuffle.models.ordering import OrderingNetwork


def rate_factor(config: OptimConfig, iteration: int) -> float:
    """What the rates are multiplied by in a step; iterations count from 0."""
    warmup = min(1.0, (iteration + 1) / config.warmup) if config.warmup else 1.0
    drops = sum(iteration >= milestone for milestone in config.milestones)
    return warmup * config.decay**drops


class Optimisers:
    """Backbone and heads, each with its own optimiser, moved in one step."""

    def __init__(self, network: OrderingNetwork, config: OptimConfig) -> None:
        self.config = config
        groups: dict[str, tuple[nn.Module, GroupConfig]] = {"backbone": (network.backbone, config.backbone)}
        for task in network.heads:
            groups[task] = (network.head(task), config.spatial if task == "spatial" else config.temporal)
        self.groups = {name: build_optimiser(module.parameters(), group) for name, (module, group) in groups.items()}
        self.rates = {name: group.lr for name, (_, group) in groups.items()}
        """Before the schedule."""

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimiser in self.groups.values():
            optimiser.zero_grad(set_to_none=True)

    def step(self, iteration: int) -> None:
        """Move all weights that have a gradient, at the rates of this iteration."""
        factor = rate_factor(self.config, iteration)
        for name, optimiser in self.groups.items():
            for group in optimiser.param_groups:
                group["lr"] = self.rates[name] * factor
            optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        """Moments of all groups."""
        return {name: optimiser.state_dict() for name, optimiser in self.groups.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all groups."""
        for name, optimiser in self.groups.items():
            optimiser.load_state_dict(state[name])


def build_optimiser(parameters: Iterable[nn.Parameter], config: GroupConfig) -> torch.optim.Optimizer:
    """The optimiser of one group of weights."""
    parameters = list(parameters)
    fused = all(parameter.is_cuda for parameter in parameters)
    if config.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused
        )
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=(config.momentum, 0.999), weight_decay=config.weight_decay, fused=fused
    )
