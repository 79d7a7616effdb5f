"""Linear and nonlinear probes on frozen features, Tab. 2 of the paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

import torch
from annotated_types import Ge
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import Count, NonNegative, Positive
from unshuffle.console import progress
from unshuffle.data.dataset import LabelledDataset
from unshuffle.errors import UserError
from unshuffle.evaluation.classification import (
    SAVE_EVERY,
    Classification,
    Setting,
    accuracies,
    chance_accuracies,
    random_crop,
)
from unshuffle.evaluation.features import FeatureCache, network_input
from unshuffle.evaluation.finetuning import Recipe, fc6_and_fc7, init_layer
from unshuffle.evaluation.protocol import Result, figure_table, note_skipped, published_table
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features
from unshuffle.randomness import torch_generator

DIMENSIONS = 9216  # of every layer, about
FAST_IMAGES = 5000
"""Training images up to which the preset auto chooses logistic regression: all their features fit into memory."""
EPOCHS, NOROOZI_EPOCHS = 28, 70
"""Passes over ImageNet that the published 140,000 and 350,000 steps of 256 images are."""
MIN_STEPS, MIN_HEAD_STEPS = 500, 125
"""Steps of the linear and of the nonlinear probe that the preset auto chooses, however few images there are."""
C_GRID = (1.0, 10.0, 100.0, 1000.0)
CORRECT = "whose class has the highest score, or one of the five highest"
Maps = dict[str, Tensor]


# ---- features of the layers


@torch.no_grad()
def frozen_maps(backbone: Backbone, pixels: Tensor, layers: tuple[str, ...] = ()) -> Maps:
    """Return the layers of a backbone for (N, side, side, 3) bytes, all but pool5 resized to about 9,216 numbers."""
    images = network_input(backbone, pixels)
    maps = {} if layers == ("pool5",) else backbone.stages(images)
    if "pool5" not in maps:
        maps["pool5"] = backbone(images)
    unknown = sorted(set(layers) - set(maps))
    if unknown:
        raise UserError(f"this backbone has no layer {unknown[0]}; there are {', '.join(maps)}")
    return {name: maps[name] if name == "pool5" else resized(maps[name]) for name in layers or maps}


def resized(maps: Tensor) -> Tensor:
    """Return (N, C, H, W) maps shrunk so that C · h · w is at most about 9,216: 10², 6², 5², 5², 6² for CaffeNet."""
    side = max(1, round((DIMENSIONS / maps.shape[1]) ** 0.5))
    if side >= min(maps.shape[2:]):
        return maps
    return F.interpolate(maps, (side, side), mode="bilinear", align_corners=False)


# ---- the probes


class LinearProbes(nn.Module):
    """A linear probe for each layer, after batch normalisation without learned parameters."""

    def __init__(self, maps: Mapping[str, Tensor], classes: int) -> None:
        super().__init__()
        self.names = list(maps)  # may contain dots, which the keys of a ModuleDict must not
        self.probes = nn.ModuleList(self._probe(layer, classes) for layer in maps.values())

    @staticmethod
    def _probe(maps: Tensor, classes: int) -> nn.Module:
        numbers = maps[0].numel()
        return nn.Sequential(nn.BatchNorm2d(maps.shape[1], affine=False), nn.Flatten(), nn.Linear(numbers, classes))

    def forward(self, maps: Mapping[str, Tensor]) -> Tensor:
        """Return scores, (N, layers, classes)."""
        return torch.stack([probe(maps[name]) for name, probe in zip(self.names, self.probes, strict=True)], dim=1)


SGD_OPTIONS = frozenset({"iterations", "lr", "drop_every", "batch_size", "momentum", "weight_decay"})
"""Options that logistic regression does not have."""


@dataclass(frozen=True)
class Linear(Classification):
    """A linear probe on each layer of the frozen backbone (Tab. 2); --fast is logistic regression."""

    fast: bool = False
    """Logistic regression on centre crops, whose features are computed once, instead of SGD on random crops."""
    c: NonNegative = 0.0
    """With --fast, the inverse regularisation strength, as in scikit-learn, for features standardised to length 1.
    0 chooses it for each layer on a held-out fifth of the training images."""
    layers: tuple[str, ...] = ()
    """Layers to probe, such as conv3 and pool5; all by default."""
    iterations: Count = 140_000
    """Steps of SGD."""
    lr: Positive = 0.01
    """Initial learning rate."""
    drop_every: Count = 40_000
    """Iterations between drops of the learning rate to a tenth."""

    stated = Classification.stated | {"c"}

    @classmethod
    def quick(cls) -> Self:
        """Return the options for logistic regression, or 300 steps of SGD without --fast."""
        return cls(preset="quick", fast=True, limit=2000, iterations=300, drop_every=100, batch_size=64, save_every=50)

    @classmethod
    def fitted(cls, given: Mapping[str, Any]) -> tuple[Self, str | None]:
        """Return the options for logistic regression, or for so many epochs as the paper has if there are many images.

        Options of SGD ask for SGD.
        """
        size = cls.training_size(given)
        if size is None:
            return cls(preset="auto"), None
        if given.get("fast", size <= FAST_IMAGES and not SGD_OPTIONS & given.keys()):
            return cls(preset="auto", fast=True), f"logistic regression (--fast) for {size:,} training images"
        batch = max(1, given.get("batch_size", cls.batch_size if size > FAST_IMAGES else 64))
        fitting = min(cls.iterations, max(MIN_STEPS, round(EPOCHS * size / batch)))
        steps = given.get("iterations", fitting)
        drop = max(1, round(steps * cls.drop_every / cls.iterations))
        options = cls(preset="auto", iterations=steps, drop_every=drop, batch_size=batch, save_every=SAVE_EVERY)
        return options, f"{steps:,} steps of SGD in batches of {batch} for {size:,} training images"

    def options(self) -> dict[str, Any]:
        """Return the options that decide the figures: with --fast not those of SGD."""
        idle = SGD_OPTIONS if self.fast else {"c"}
        return {name: value for name, value in super().options().items() if name not in idle}

    def measure(self, console: Console) -> Result:
        """Train all probes together, or one after another with --fast."""
        setting = self.prepare(console)
        side = setting.backbone.eval_size
        black = torch.zeros(1, side, side, 3, dtype=torch.uint8, device=setting.device)
        blank = frozen_maps(setting.backbone, black, self.layers)
        fit = self._fit_fast if self.fast else self._fit
        scores, labels, trained_on = fit(setting, blank)
        figures = {name: accuracies(scores[:, number], labels) for number, name in enumerate(blank)}
        how = (
            f"logistic regression on centre crops, C {f'= {self.c:g}' if self.c else 'chosen on a held-out fifth'}"
            if self.fast
            else f"SGD, {self.iterations:,} steps of {self.batch_size}, random crops and flips"
        )
        table = probe_table(figures, setting, self.is_papers(setting.idle | {"layers"}), {"pool5": "linear"})
        protocol = "linear probes on frozen layers" + (", logistic regression" if self.fast else "")
        return self.with_data(Result(protocol, how, figures, table), CORRECT, setting, trained_on, labels)

    def _fit(self, setting: Setting, blank: Maps) -> tuple[Tensor, Tensor, int]:
        """Return scores and labels of the test images, and the number of training images."""
        setting = self.readable(setting)
        probes = LinearProbes(blank, len(setting.training.classes)).to(setting.device)
        drops = tuple(range(self.drop_every, self.iterations, self.drop_every))
        recipe = Recipe(self.iterations, self.lr, self.momentum, self.weight_decay, drops)
        input_of = partial(frozen_maps, setting.backbone, layers=self.layers)
        scores, labels = self.train_and_test(setting, probes, recipe, input_of, random_crop)
        return scores, labels, len(setting.training)

    def _fit_fast(self, setting: Setting, blank: Maps) -> tuple[Tensor, Tensor, int]:
        sizes = [maps[0].numel() for maps in blank.values()]

        def compute(pixels: Tensor) -> Tensor:
            maps = frozen_maps(setting.backbone, pixels, self.layers)
            return torch.cat([layer.flatten(1) for layer in maps.values()], dim=1)

        def features(dataset: LabelledDataset, title: str) -> tuple[Tensor, Tensor]:
            job = [setting.weights, dataset.identity(), *blank]
            cache = FeatureCache.at(self.folder(f"features/{title}"), job)
            return self.scores(setting, dataset, compute, title, cache)

        training, labels = features(setting.training, "training")
        self.check_training(setting, labels.tolist())
        testing, test_labels = features(setting.testing, "test")
        note_skipped(setting.console, setting.testing, "test images", self.out)
        scores: list[Tensor] = []
        layers = zip(training.split(sizes, dim=1), testing.split(sizes, dim=1), strict=True)
        with progress(setting.console, "regressions", len(sizes)) as advance:
            for train_features, test_features in layers:
                train_features, test_features = standardised(
                    train_features.to(setting.device), test_features.to(setting.device)
                )
                weight, bias = self._regress(train_features, labels.to(setting.device), len(setting.training.classes))
                scores.append((test_features @ weight.T + bias).cpu())
                advance(len(scores))
        return torch.stack(scores, dim=1), test_labels, len(labels)

    def _regress(self, features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        generator = torch_generator(torch.device("cpu"), self.seed, "held back")
        c = self.c or choose_c(features, labels, classes, generator)
        return logistic_regression(features, labels, classes, c=c)


@dataclass(frozen=True)
class ProbeProtocol:
    """A published protocol of the nonlinear probe."""

    build: Callable[[int, int, int], nn.Module]
    """Makes the probe of the numbers of features, hidden units and classes."""
    recipe: Recipe
    batch_size: int
    in_epochs: bool = False
    """Whether the recipe counts epochs instead of iterations."""


@dataclass(frozen=True)
class NonLinear(Classification):
    """A probe with two hidden layers on the frozen pool5 (Tab. 2)."""

    protocol: Literal["noroozi", "rotnet"] = "noroozi"
    """noroozi: the paper's, which trains AlexNet's fc6, fc7 and fc8 for 350,000 iterations. rotnet: with batch
    normalisation instead of dropout, 40 epochs; learns in fewer steps."""
    hidden: Count = 4096
    """Width of the hidden layers."""
    iterations: Count | None = None
    """Steps of SGD, instead of the protocol's; the learning-rate drops move in proportion."""
    lr: Positive | None = None
    """Initial learning rate, instead of the protocol's (noroozi: 0.01, rotnet: 0.1)."""
    batch_size: Annotated[int, Ge(0)] = 0
    """Images per step; 0 is the protocol's (noroozi: 256, rotnet: 192)."""

    @classmethod
    def quick(cls) -> Self:
        """Return the options for 125 steps with batch normalisation, and narrow layers."""
        return cls(
            preset="quick", protocol="rotnet", iterations=125, hidden=512, limit=2000, batch_size=64, save_every=50
        )

    @classmethod
    def fitted(cls, given: Mapping[str, Any]) -> tuple[Self, str | None]:
        """Return the protocol that learns in fewer steps, with narrow layers for few images."""
        size = cls.training_size(given)
        if size is None:
            return cls(preset="auto"), None
        few = size <= FAST_IMAGES
        name = given.get("protocol", "rotnet")
        protocol = PROTOCOLS.get(name, PROTOCOLS["rotnet"])  # a wrong name is refused later, as any option
        batch = max(0, given.get("batch_size", 0)) or (64 if few else protocol.batch_size)
        epochs = protocol.recipe.iterations if protocol.in_epochs else NOROOZI_EPOCHS
        steps = given.get("iterations") or max(MIN_HEAD_STEPS, round(epochs * size / batch))
        hidden = given.get("hidden", 512 if few else cls.hidden)
        options = cls(
            preset="auto", protocol=name, iterations=steps, hidden=hidden, batch_size=batch, save_every=SAVE_EVERY
        )
        return options, (
            f"protocol {name}, layers of {hidden}, {steps:,} steps of SGD in batches of {batch} for {size:,} training "
            "images"
        )

    def measure(self, console: Console) -> Result:
        """Train the probe, then test it."""
        protocol = PROTOCOLS[self.protocol]
        chosen = replace(self, batch_size=self.batch_size or protocol.batch_size)
        return chosen._measure(protocol, console, self.is_papers(frozenset({"limit"})))

    def _measure(self, protocol: ProbeProtocol, console: Console, is_papers: bool) -> Result:
        if self.protocol == "rotnet" and self.batch_size == 1:
            raise UserError("batch_size is 1, but the batch normalisation of --protocol rotnet needs 2 or more")
        setting = self.readable(self.prepare(console))
        backbone, training = setting.backbone, setting.training
        features = backbone_features(backbone, backbone.eval_size)
        network = protocol.build(features, self.hidden, len(training.classes)).to(setting.device)
        recipe = self._recipe(protocol, training, console)

        def input_of(pixels: Tensor) -> Tensor:
            return frozen_maps(backbone, pixels, ("pool5",))["pool5"]

        scores, labels = self.train_and_test(setting, network, recipe, input_of, random_crop)
        figures = accuracies(scores, labels)
        how = f"SGD, {recipe.iterations:,} steps in batches of {self.batch_size}, random crops and flips"
        table = probe_table({"non-linear": figures}, setting, is_papers)
        result = Result("nonlinear probe on frozen pool5", how, figures, table)
        return self.with_data(result, CORRECT, setting, len(training), labels)

    def _recipe(self, protocol: ProbeProtocol, training: LabelledDataset, console: Console) -> Recipe:
        """Return the protocol's schedule in iterations, as the options change it."""
        iterations = self.iterations
        if iterations is None and protocol.in_epochs:
            (iterations,) = self.iterations_until([protocol.recipe.iterations], training, 1, console)
        recipe = protocol.recipe.changed(iterations, self.lr)
        return replace(recipe, momentum=self.momentum, weight_decay=self.weight_decay)


def is_imagenet(setting: Setting) -> bool:
    """Return whether the data has the size of ImageNet's training and validation sets, in full."""
    sizes = len(setting.training.classes), len(setting.training), len(setting.testing)
    return sizes == (1000, 1_281_167, 50_000)


def probe_table(
    figures: Mapping[str, Mapping[str, float]],
    setting: Setting,
    is_papers: bool,
    paper_columns: Mapping[str, str] | None = None,
) -> Table:
    """Return the accuracies of each probe and those at chance, and on ImageNet the paper's."""
    chance = chance_accuracies(setting.trained_classes)
    tops = list(next(iter(figures.values())))
    ours = {f"this network, top {top[3:]}": {name: row[top] for name, row in figures.items()} for top in tops}
    ours |= {f"chance, top {top[3:]}": dict.fromkeys(figures, chance[top]) for top in tops}
    if not is_papers or not is_imagenet(setting):
        return figure_table(ours)
    return published_table("2", ours, "ImageNet, top 1", paper_columns)


def alexnet_head(features: int, hidden: int, classes: int) -> nn.Module:
    """Return AlexNet's fc6, fc7 and fc8 with its initial weights: ReLU and dropout after the hidden layers, no BN."""
    fc8 = init_layer(nn.Linear(hidden, classes), std=0.01, bias=0.0)
    return nn.Sequential(nn.Flatten(), *fc6_and_fc7(features, hidden, init_std=0.005), fc8)


def batch_norm_head(features: int, hidden: int, classes: int) -> nn.Module:
    """Return a network: flatten, twice (fully connected, BN, ReLU), then one score for each class."""
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


PROTOCOLS = {
    "noroozi": ProbeProtocol(
        alexnet_head, Recipe(350_000, lr=0.01, milestones=(100_000, 200_000, 300_000)), batch_size=256
    ),
    "rotnet": ProbeProtocol(
        batch_norm_head,
        Recipe(40, lr=0.1, milestones=(10, 20, 30), lrs=(0.1, 0.01, 0.002, 0.0004)),
        batch_size=192,
        in_epochs=True,
    ),
}


# ---- logistic regression


def logistic_regression(
    features: Tensor, labels: Tensor, classes: int, *, c: float = 1.0, iterations: int = 500, tolerance: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Return the weights (classes, D) and biases that minimise C · Σ cross-entropy + ½ ‖weights‖², by L-BFGS.

    This is scikit-learn's objective, on any device; biases are not penalised.
    """
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, device=features.device, requires_grad=True)
    bias = torch.zeros(classes, dtype=features.dtype, device=features.device, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        history_size=10,
        tolerance_grad=tolerance,
        tolerance_change=tolerance**2,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        # Divided by C · N, so that the tolerance means the same for any number of images.
        loss = F.cross_entropy(features @ weight.T + bias, labels) + weight.square().sum() / (2 * c * len(features))
        loss.backward()
        return loss

    optimiser.step(objective)  # type: ignore[arg-type]
    return weight.detach(), bias.detach()


def choose_c(features: Tensor, labels: Tensor, classes: int, generator: torch.Generator) -> float:
    """Return the C of the grid with the highest accuracy on a held-out fifth of the images."""
    order = torch.randperm(len(features), generator=generator).to(features.device)
    held_out, kept = order[: len(order) // 5], order[len(order) // 5 :]

    def hits(c: float) -> int:
        weight, bias = logistic_regression(features[kept], labels[kept], classes, c=c, tolerance=1e-4)
        return int(((features[held_out] @ weight.T + bias).argmax(dim=1) == labels[held_out]).sum())

    return max(C_GRID, key=hits)


def standardised(training: Tensor, testing: Tensor) -> tuple[Tensor, Tensor]:
    """Scale the dimensions to mean 0 and std 1 in training, then all of them so that vectors have a length of 1."""
    std, mean = torch.std_mean(training, dim=0, correction=0)
    # A dimension that is constant in training holds no information; a tiny std would magnify it in the test.
    scale = torch.where(std > 1e-6, 1 / std, 0) / training.shape[1] ** 0.5
    return (training - mean) * scale, (testing - mean) * scale
