"""Classifiers on frozen features, Tab. 2 of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.console import progress
from unshuffle.errors import UserError
from unshuffle.evaluation.classification import Classification, Setting, accuracies, blind_accuracies, window
from unshuffle.evaluation.features import network_input
from unshuffle.evaluation.fine_tuning import Recipe
from unshuffle.evaluation.items import Items
from unshuffle.evaluation.kept import kept_features
from unshuffle.evaluation.logistic import Standardisation, choose_c, logistic_regression
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.published import published_table
from unshuffle.evaluation.skips import tell_skipped
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features
from unshuffle.randomness import torch_generator

DIMENSIONS = 9216  # about so many of every layer
Maps = dict[str, Tensor]


@torch.no_grad()
def frozen_maps(backbone: Backbone, pixels: Tensor, layers: tuple[str, ...] = ()) -> Maps:
    """The layers of a backbone for (N, side, side, 3) bytes, each resized to about 9,216 numbers; pool5 is as it is."""
    images = network_input(backbone, pixels)
    maps = {} if layers == ("pool5",) else backbone.stages(images)
    if "pool5" not in maps:
        maps["pool5"] = backbone(images)
    unknown = sorted(set(layers) - set(maps))
    if unknown:
        raise UserError(f"this backbone has no layer {unknown[0]}; there are {', '.join(maps)}")
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
        self.names = list(maps)  # which may have dots in them, as those of a ModuleDict must not
        self.probes = nn.ModuleList(self._probe(some, classes) for some in maps.values())

    @staticmethod
    def _probe(maps: Tensor, classes: int) -> nn.Module:
        numbers = maps[0].numel()
        return nn.Sequential(nn.BatchNorm2d(maps.shape[1], affine=False), nn.Flatten(), nn.Linear(numbers, classes))

    def forward(self, maps: Mapping[str, Tensor]) -> Tensor:
        """(N, layers, classes)"""
        return torch.stack([probe(maps[name]) for name, probe in zip(self.names, self.probes, strict=True)], dim=1)


@dataclass(frozen=True)
class Linear(Classification):
    """A linear classifier on each layer of the frozen backbone (Tab. 2); --fast is logistic regression."""

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

    stated = Classification.stated | {"c"}
    may_be_zero = Classification.may_be_zero | {"c"}

    @classmethod
    def quick(cls) -> Self:
        """Logistic regression; without it, 300 steps of SGD."""
        return cls(preset="quick", fast=True, limit=2000, iterations=300, drop_every=100, batch_size=64, save_every=50)

    def options(self) -> dict[str, Any]:
        """The options that decide the figures; those of SGD do not, with --fast."""
        sgd = {"iterations", "lr", "drop_every", "batch_size", "momentum", "weight_decay"} if self.fast else {"c"}
        return {name: value for name, value in super().options().items() if name not in sgd}

    def measure(self, console: Console) -> Result:
        """Train all classifiers together, or one after another with --fast."""
        setting = self.prepare(console)
        side = setting.backbone.eval_size
        black = torch.zeros(1, side, side, 3, dtype=torch.uint8, device=setting.device)
        blank = frozen_maps(setting.backbone, black, self.layers)
        fit = self._fit_fast if self.fast else self._fit
        scores, labels, trained_on = fit(setting, blank, console)
        figures = {name: accuracies(scores[:, number], labels) for number, name in enumerate(blank)}
        how = (
            f"logistic regression on centre crops, C {f'= {self.c:g}' if self.c else 'by a held-back fifth'}"
            if self.fast
            else f"SGD, {self.iterations:,} steps of {self.batch_size}, random crops and mirror images"
        )
        common = self.figures(setting, trained_on, labels)
        tops = [k for k in (1, 5) if k <= scores.shape[-1]]
        blind = blind_accuracies(setting.learned)
        ours = {f"this network, top {k}": {name: some[f"top{k}"] for name, some in figures.items()} for k in tops}
        ours |= {f"blind guess, top {k}": dict.fromkeys(figures, blind[f"top{k}"]) for k in tops}
        return Result(
            "linear classifiers on frozen layers" + (", logistic regression" if self.fast else ""),
            self.statement(setting, trained_on, labels, how) + " whose class is the first guess, or among five",
            {**figures, **common},
            published_table("2", ours, "ImageNet, top 1", {"pool5": "linear"}),
            idle=setting.idle,
        )

    def _fit(self, setting: Setting, blank: Maps, console: Console) -> tuple[Tensor, Tensor, int]:
        """Scores and labels of the test images, and the number of training images."""
        setting = self.readable(setting, console)
        probes = LinearProbes(blank, len(setting.training.classes)).to(setting.device)

        def scores_of(pixels: Tensor) -> Tensor:
            scores: Tensor = probes(frozen_maps(setting.backbone, pixels, self.layers))
            return scores

        drops = tuple(range(self.drop_every, self.iterations, self.drop_every))
        recipe = Recipe(self.iterations, self.lr, self.momentum, self.weight_decay, drops)
        scores, labels = self.train_and_test(probes, recipe, scores_of, window, setting, console)
        return scores, labels, len(setting.training)

    def _fit_fast(self, setting: Setting, blank: Maps, console: Console) -> tuple[Tensor, Tensor, int]:
        sizes = [maps[0].numel() for maps in blank.values()]

        def compute(pixels: Tensor) -> Tensor:
            maps = frozen_maps(setting.backbone, pixels, self.layers)
            return torch.cat([some.flatten(1) for some in maps.values()], dim=1)

        def features(items: Items, title: str) -> tuple[Tensor, Tensor]:
            kept = kept_features(self.folder(f"features/{title}"), [setting.weights, items.fingerprint(), *blank])
            return self.scores(items, compute, setting.device, console, title, kept)

        known, labels = features(setting.training, "training")
        self.check_training(setting.training, labels.tolist(), console)
        asked, truth = features(setting.testing, "test")
        tell_skipped(console, setting.testing.skipped, "test images")
        scores: list[Tensor] = []
        layers = zip(known.split(sizes, dim=1), asked.split(sizes, dim=1), strict=True)
        with progress(console, "regressions", len(sizes)) as advance:
            for ours, theirs in layers:
                ours, theirs = ours.to(setting.device), theirs.to(setting.device)
                standard = Standardisation(ours)
                weight, bias = self._regress(standard(ours), labels.to(setting.device), len(setting.training.classes))
                scores.append((standard(theirs) @ weight.T + bias).cpu())
                advance(len(scores))
        return torch.stack(scores, dim=1), truth, len(labels)

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
    min_iterations: int = 1
    """Steps that there are at least: with few images all stretches are longer."""
    rates: tuple[float, ...] = (0.1, 0.01, 0.002, 0.0004)
    """Learning rate of each stretch."""
    batch_size: int = 192
    """Images of a step."""

    @classmethod
    def quick(cls) -> Self:
        """A tenth of the epochs, and 100 steps at least, with narrow layers."""
        return cls(
            preset="quick",
            epochs=(2, 3, 4),
            rates=(0.1, 0.01, 0.002),
            min_iterations=100,
            hidden=512,
            limit=2000,
            batch_size=64,
            save_every=50,
        )

    def measure(self, console: Console) -> Result:
        """Train the classifier."""
        if len(self.epochs) != len(self.rates) or not self.epochs or sorted(self.epochs) != list(self.epochs):
            raise UserError("epochs must grow, and there must be one of rates for each of them")
        setting = self.readable(self.prepare(console), console)
        backbone, training = setting.backbone, setting.training
        features = backbone_features(backbone, backbone.eval_size)
        network = two_hidden_layers(features, self.hidden, len(training.classes)).to(setting.device)

        def scores_of(pixels: Tensor) -> Tensor:
            scores: Tensor = network(frozen_maps(backbone, pixels, ("pool5",))["pool5"])
            return scores

        until = self.steps(self.epochs, training, self.min_iterations, console)
        recipe = StepwiseRecipe(
            until[-1], self.rates[0], self.momentum, self.weight_decay, until=until, rates=self.rates
        )
        scores, labels = self.train_and_test(network, recipe, scores_of, window, setting, console)
        figures, common = accuracies(scores, labels), self.figures(setting, len(training), labels)
        how = f"SGD, {until[-1]:,} steps in batches of {self.batch_size}, random crops and mirror images"
        ours = {f"this network, top {key[3:]}": {"non-linear": value} for key, value in figures.items()}
        blind = blind_accuracies(setting.learned)
        ours |= {f"blind guess, top {key[3:]}": {"non-linear": blind[key]} for key in figures}
        return Result(
            "non-linear classifier on frozen pool5",
            self.statement(setting, len(training), labels, how) + " whose class is the first guess, or among five",
            {**figures, **common},
            published_table("2", ours, "ImageNet, top 1"),
            idle=setting.idle,
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
