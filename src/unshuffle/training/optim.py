"""The optimisers of the backbone and of each head, under one learning-rate schedule for each stage."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unshuffle.config import Config, OptimiserConfig
from unshuffle.tasks.base import Network


def lr_factor(config: Config, iteration: int) -> float:
    """Return the factor of the learning rates in a step; iterations count from 0."""
    optim, scheduled = config.optim, config.schedule_iteration(iteration)
    warmup = min(1.0, (scheduled + 1) / optim.warmup) if optim.warmup else 1.0
    if optim.schedule == "cosine":
        progress = max(0, scheduled - optim.warmup) / max(1, optim.iterations - optim.warmup)
        return warmup * (1 + math.cos(math.pi * min(1.0, progress))) / 2
    drops = sum(scheduled >= milestone for milestone in optim.milestones)
    return warmup * optim.decay**drops


class Optimisers:
    """One optimiser for the backbone and one for each head."""

    def __init__(self, network: Network, config: Config) -> None:
        self.config = config
        groups: dict[str, tuple[nn.Module, OptimiserConfig]] = {"backbone": (network.backbone, config.optim.backbone)}
        for name, task in network.tasks.items():
            groups[name] = (network.heads[name], task.settings.optimiser)
        self.optimisers = {
            name: build_optimiser(module.parameters(), group) for name, (module, group) in groups.items()
        }
        self.base_lrs = {name: group.lr for name, (_, group) in groups.items()}
        self._initialise_momentum()

    def learning_rates(self, iteration: int) -> dict[str, float]:
        """Return the learning rates of the backbone and of each head in a step; iterations count from 0."""
        factor = lr_factor(self.config, iteration)
        return {name: lr * factor for name, lr in self.base_lrs.items()}

    def zero_grad(self) -> None:
        """Discard all gradients."""
        for optimiser in self.optimisers.values():
            optimiser.zero_grad(set_to_none=True)

    def step(self, iteration: int, skipped: Tensor | None = None) -> None:
        """Update all parameters that have a gradient, with the learning rates of this iteration.

        If `skipped`, a bool on the device, is true, parameters and states stay as they are. Fused optimisers read it on
        the device, as they do with a gradient scaler; the others are those of a CPU, where reading it takes no time.
        """
        lrs = self.learning_rates(iteration)
        found_inf = None if skipped is None else skipped.float()
        for name, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = lrs[name]
            if optimiser.defaults["fused"]:
                optimiser.found_inf = found_inf  # type: ignore[attr-defined]
            elif found_inf is not None and bool(found_inf):
                continue
            optimiser.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all optimisers."""
        return {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of all optimisers."""
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state[name])
        self._initialise_momentum()

    def _initialise_momentum(self) -> None:
        """Begin with a momentum of zero where fused SGD would leave it uninitialised if its first step were skipped."""
        for optimiser in self.optimisers.values():
            if not isinstance(optimiser, torch.optim.SGD) or not optimiser.defaults["fused"]:
                continue
            for group in optimiser.param_groups:
                for parameter in group["params"] if group["momentum"] else ():
                    optimiser.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def are_fused(parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether one kernel updates all parameters: on a GPU."""
    return all(parameter.is_cuda for parameter in parameters)


def build_optimiser(parameters: Iterable[nn.Parameter], config: OptimiserConfig) -> torch.optim.Optimizer:
    """Return the configured optimiser of a group of parameters."""
    parameters = list(parameters)
    fused = are_fused(parameters)
    if config.kind == "sgd":
        return torch.optim.SGD(
            parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused
        )
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=(config.momentum, 0.999), weight_decay=config.weight_decay, fused=fused
    )
