"""Fine-tuning of the whole backbone on images in folders by class."""

import math
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from torch import Tensor, nn

from unshuffle.evaluation.classification import Classification, accuracies, blind_accuracies, mean_class_accuracy, zoom
from unshuffle.evaluation.classifier import TrainedClassifier
from unshuffle.evaluation.features import network_input
from unshuffle.evaluation.fine_tuning import Recipe
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.published import figure_table
from unshuffle.models.registry import backbone_features


@dataclass(frozen=True)
class CosineRecipe(Recipe):
    """SGD whose rate falls to zero along half a cosine."""

    def rate(self, iteration: int) -> float:
        """The learning rate of a step."""
        return self.lr * (1 + math.cos(math.pi * iteration / self.iterations)) / 2


@dataclass(frozen=True)
class FineTuning(Classification):
    """All of the backbone and a new classifier, trained on your labelled images."""

    epochs: int = 50
    """Times that every image is seen."""
    min_iterations: int = 1
    """Steps that there are at least: with few images there are more epochs."""
    lr: float = 0.001
    """First learning rate; it falls to zero along half a cosine."""
    batch_size: int = 64
    """Images of a step."""
    weight_decay: float = 1e-4
    """Of SGD; biases have none, and learn twice as fast."""

    training_title = "fine-tuning"

    @classmethod
    def quick(cls) -> Self:
        """5 epochs, and 100 steps at least."""
        return cls(preset="quick", epochs=5, min_iterations=100, limit=2000, save_every=50)

    def measure(self, console: Console) -> Result:
        """Train, then measure."""
        setting = self.readable(self.prepare(console), console)
        backbone, training = setting.backbone, setting.training
        features = backbone_features(backbone, backbone.eval_size)
        network = nn.Sequential(backbone, nn.Flatten(), nn.Linear(features, len(training.classes))).to(setting.device)

        def scores_of(pixels: Tensor) -> Tensor:
            scores: Tensor = network(network_input(backbone, pixels))
            return scores

        (steps,) = self.steps([self.epochs], training, self.min_iterations, console)
        recipe = CosineRecipe(steps, self.lr, self.momentum, self.weight_decay)
        scores, labels = self.train_and_test(network, recipe, scores_of, zoom, setting, console)
        if self.out is not None:
            TrainedClassifier(backbone, network[1:], training.classes).save(self.out.expanduser())
        common = self.figures(setting, len(training), labels)
        figures = {**accuracies(scores, labels), "mean_class": mean_class_accuracy(scores, labels)}
        how = f"{steps:,} steps of SGD in batches of {self.batch_size}, random zoom and mirror images"
        titles = {"top1": "top 1", "top5": "top 5", "mean_class": "mean over classes"}
        blind = {**blind_accuracies(setting.learned), "mean_class": common["chance"]}
        ours = {
            "this network": {titles[key]: value for key, value in figures.items()},
            "blind guess": {titles[key]: blind[key] for key in figures},
        }
        return Result(
            "fine-tuning of the whole backbone",
            self.statement(setting, len(training), labels, how) + " recognised, and the mean of that over the classes",
            {**figures, **common},
            figure_table(ours),
            idle=setting.idle,
        )
