"""Classifiers on frozen features, Tab. 2 of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.errors import UserError
from unshuffle.evaluation.classification import Classification, Labelled, accuracies, window
from unshuffle.evaluation.features import network_input
from unshuffle.evaluation.fine_tuning import Recipe, fine_tune
from unshuffle.evaluation.items import Items
from unshuffle.evaluation.logistic import Standardisation, choose_c, logistic_regression
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.published import published_table
from unshuffle.models import Backbone
from unshuffle.randomness import torch_generator

DIMENSIONS = 9216  # about so many of every layer
Maps = dict[str, Tensor]


@torch.no_grad()
def frozen_maps(trunk: Backbone, pixels: Tensor, layers: tuple[str, ...] = ()) -> Maps:
    """The layers of a trunk for (N, side, side, 3) bytes, each resized to about 9,216 numbers; pool5 is as it is."""
    images = network_input(trunk, pixels)
    maps = {} if layers == ("pool5",) else trunk.stages(images)
    if "pool5" not in maps:
        maps["pool5"] = trunk(images)
    unknown = sorted(set(layers) - set(maps))
    if unknown:
        raise UserError(f"this trunk has no layer {unknown[0]}; there are {', '.join(maps)}")
    return {name: maps[name] if name == "pool5" else resized(maps[name]) for name in layers or maps}


def resized(maps: Tensor) -> Tensor:
    """(N, C, H, W) maps shrunk, if need be, so that C · h · w is about 9,216: 10², 6², 5², 5², 6² for CaffeNet."""
    side = max(1, round((DIMENSIONS / maps.shape[1]) ** 0.5))
    if side >= min(maps.shape[2:]):
        return maps
    return F.interpolate(maps, (side, side), mode="bilinear", align_corners=False)


class LinearProbes(nn.Module):
    """A linear classifier for each layer, over batch normalisation that learns nothing."""

    def __init__(self, maps: Mapping[str, Tensor], classes: int) -> None:
        super().__init__()
        self.probes = nn.ModuleDict({name: self._probe(some, classes) for name, some in maps.items()})

    @staticmethod
    def _probe(maps: Tensor, classes: int) -> nn.Module:
        numbers = maps[0].numel()
        return nn.Sequential(nn.BatchNorm2d(maps.shape[1], affine=False), nn.Flatten(), nn.Linear(numbers, classes))

    def forward(self, maps: Mapping[str, Tensor]) -> Tensor:
        """(N, layers, classes)"""
        return torch.stack([probe(maps[name]) for name, probe in self.probes.items()], dim=1)


@dataclass(frozen=True)
class Linear(Classification):
    """A linear classifier on each layer of the frozen trunk (Tab. 2); --fast is logistic regression."""

    fast: bool = False
    """Logistic regression on the centre crops, whose features are computed once, instead of SGD on random crops."""
    c: float = 0.0
    """With --fast, the inverse strength of the penalty, as in scikit-learn, for features standardised to length 1.
    0 chooses it for each layer by a fifth of the training images."""
    layers: tuple[str, ...] = ()
    """Such as conv3 and pool5; by default all."""
    iterations: int = 140_000
    """Steps of SGD."""
    lr: float = 0.01
    """First learning rate."""
    drop_every: int = 40_000
    """Iterations after which the rate becomes a tenth."""

    @classmethod
    def quick(cls) -> Self:
        """Logistic regression; without it, 300 steps of SGD."""
        return cls(preset="quick", fast=True, limit=2000, iterations=300, drop_every=100, batch_size=64, save_every=50)

    def run(self, console: Console) -> Result:
        """Train all classifiers together, or one after another with --fast."""
        trunk, device, training, testing = self.prepare()
        names = tuple(frozen_maps(trunk, _blank(trunk, device), self.layers))
        fit = self._fit_fast if self.fast else self._fit
        scores, labels = fit(trunk, device, training, testing, console)
        figures = {name: accuracies(scores[:, number], labels) for number, name in enumerate(names)}
        columns = {("linear" if name == "pool5" else name): some["top1"] for name, some in figures.items()}
        how = (
            f"logistic regression, C {f'= {self.c:g}' if self.c else 'by a held-back fifth'}"
            if self.fast
            else f"SGD, {self.iterations:,} steps of {self.batch_size}"
        )
        return Result(
            "linear classifiers on frozen layers" + (", logistic regression" if self.fast else ""),
            self.statement(training, testing, how) + " whose class is the first guess",
            {**figures, "skipped": len(training.skipped) + len(testing.skipped)},
            published_table("2", columns),
        )

    def _fit(
        self, trunk: Backbone, device: torch.device, training: Items, testing: Items, console: Console
    ) -> tuple[Tensor, Tensor]:
        probes = LinearProbes(frozen_maps(trunk, _blank(trunk, device), self.layers), len(training.classes)).to(device)

        def loss(batch: Labelled) -> Tensor:
            scores: Tensor = probes(frozen_maps(trunk, batch.pixels.to(device), self.layers))
            labels = batch.labels.to(device)[:, None].expand(scores.shape[:2])
            # the layers' losses are summed, as none is to learn more slowly because there are others
            return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / len(scores)

        drops = tuple(range(self.drop_every, self.iterations, self.drop_every))
        recipe = Recipe(self.iterations, self.lr, self.momentum, self.weight_decay, drops)
        fine_tune(probes, recipe, self.batches(training, window), loss, self.workshop(console))
        probes.eval()

        @torch.no_grad()
        def compute(pixels: Tensor) -> Tensor:
            scores: Tensor = probes(frozen_maps(trunk, pixels, self.layers))
            return scores

        return self.scores(testing, compute, device, console, "test")

    def _fit_fast(
        self, trunk: Backbone, device: torch.device, training: Items, testing: Items, console: Console
    ) -> tuple[Tensor, Tensor]:
        blank = frozen_maps(trunk, _blank(trunk, device), self.layers)
        sizes = [maps[0].numel() for maps in blank.values()]

        def compute(pixels: Tensor) -> Tensor:
            return torch.cat([maps.flatten(1) for maps in frozen_maps(trunk, pixels, self.layers).values()], dim=1)

        known, labels = self.scores(training, compute, device, console, "training")
        asked, truth = self.scores(testing, compute, device, console, "test")
        scores = []
        for ours, theirs in zip(known.split(sizes, dim=1), asked.split(sizes, dim=1), strict=True):
            ours, theirs = ours.to(device), theirs.to(device)
            standard = Standardisation(ours)
            weight, bias = self._regress(standard(ours), labels.to(device), len(training.classes))
            scores.append((standard(theirs) @ weight.T + bias).cpu())
        return torch.stack(scores, dim=1), truth

    def _regress(self, features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        generator = torch_generator(torch.device("cpu"), self.seed, "held back")
        c = self.c or choose_c(features, labels, classes, generator)
        return logistic_regression(features, labels, classes, c=c)


@dataclass(frozen=True)
class StepwiseRecipe(Recipe):
    """SGD with a rate for each stretch."""

    until: tuple[int, ...] = ()
    """Where each stretch ends."""
    rates: tuple[float, ...] = ()

    def rate(self, iteration: int) -> float:
        """The learning rate of a step."""
        stretch = sum(iteration >= end for end in self.until[:-1])
        return self.rates[stretch]


@dataclass(frozen=True)
class NonLinear(Classification):
    """Two hidden layers of 4096 on the frozen pool5 (Tab. 2)."""

    hidden: int = 4096
    """Width of the hidden layers."""
    epochs: tuple[int, ...] = (10, 20, 30, 40)
    """Epochs at which each stretch of the schedule ends."""
    rates: tuple[float, ...] = (0.1, 0.01, 0.002, 0.0004)
    """Learning rate of each stretch."""
    batch_size: int = 192
    """Images of a step."""

    @classmethod
    def quick(cls) -> Self:
        """A tenth of the epochs, with narrow layers."""
        return cls(
            preset="quick",
            epochs=(2, 3, 4),
            rates=(0.1, 0.01, 0.002),
            hidden=512,
            limit=2000,
            batch_size=64,
            save_every=50,
        )

    def run(self, console: Console) -> Result:
        """Train the classifier."""
        if len(self.epochs) != len(self.rates) or not self.epochs or sorted(self.epochs) != list(self.epochs):
            raise UserError("epochs must grow, and there must be one of rates for each of them")
        trunk, device, training, testing = self.prepare()
        features = frozen_maps(trunk, _blank(trunk, device), ("pool5",))["pool5"][0].numel()
        network = two_hidden_layers(features, self.hidden, len(training.classes)).to(device)

        def scores_of(pixels: Tensor) -> Tensor:
            scores: Tensor = network(frozen_maps(trunk, pixels.to(device), ("pool5",))["pool5"])
            return scores

        until = tuple(self.steps(epoch, training) for epoch in self.epochs)
        recipe = StepwiseRecipe(
            until[-1], self.rates[0], self.momentum, self.weight_decay, until=until, rates=self.rates
        )
        scores, labels = self.train_and_test(
            network, recipe, scores_of, self.batches(training, window), testing, device, console
        )
        figures = accuracies(scores, labels)
        how = f"SGD, {self.epochs[-1]} epochs in batches of {self.batch_size}, random crops and mirror images"
        return Result(
            "non-linear classifier on frozen pool5",
            self.statement(training, testing, how) + " whose class is the first guess",
            {**figures, "skipped": len(training.skipped) + len(testing.skipped)},
            published_table("2", {"non-linear": figures["top1"]}),
        )


def two_hidden_layers(features: int, hidden: int, classes: int) -> nn.Module:
    """Flatten, then twice fully connected, BN and ReLU, then one score for each class."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )


def _blank(trunk: Backbone, device: torch.device) -> Tensor:
    return torch.zeros(1, trunk.eval_size, trunk.eval_size, 3, dtype=torch.uint8, device=device)
