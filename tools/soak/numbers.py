"""Part f: numbers that training cannot use: constant images, identical frames, values that are not finite."""

import math
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from soak.campaign import Campaign
from soak.commands import run
from soak.samples import training_options, write_video
from unshuffle.data.batches import Batch
from unshuffle.runs.run import Run
from unshuffle.tasks.base import Inputs, Outcome
from unshuffle.training.step import Step
from unshuffle.training.trainer import Trainer

ITERATIONS = 12


def check(campaign: Campaign) -> None:
    """Train from data without information, and with values that are not finite."""
    with campaign.row("f", "training on constant images and clips of identical frames") as row:
        for colour in (0, 128, 255)[: campaign.counts.rounds]:
            folder = campaign.new_folder(f"constant-{colour}")
            _write_constant(folder, colour)
            ended = run(["pretrain", "--out", "run", *training_options(ITERATIONS)], folder)
            row.count += 1
            if ended.code or not _is_finite(Run(folder / "run")):
                row.lost.append(f"colour {colour}: {ended.problem or ended.sentence or 'metrics that are not finite'}")
        row.result = f"{row.count - len(row.lost)} trained to the end, with finite metrics"
    with campaign.row("f", "weights with NaN or infinity given to --init, embed and export") as row:
        for value, command in ((value, command) for value in (math.nan, math.inf, -math.inf) for command in COMMANDS):
            problem = _use_weights(campaign, value, command)
            row.count += 1
            if problem:
                row.lost.append(f"{value} in weights for {command}: {problem}")
        row.result = f"{row.count - len(row.lost)} refused in one sentence"
    check_injected(campaign)


def check_injected(campaign: Campaign) -> None:
    """Let single steps see NaN or infinity, which must be skipped and named, and all steps, which must end the run."""
    folder = campaign.folder / "constant-0"
    with campaign.row("f", "NaN or infinity in a sample or a gradient of single steps, and of all") as row:
        for value, target in ((value, target) for value in (math.nan, math.inf) for target in INJECTIONS):
            for number in range(campaign.counts.rounds):
                stream = campaign.rng("injected", value, target, number)
                chosen = sorted(stream.sample(range(ITERATIONS), 2))
                problem = _train_injected(
                    folder, f"{target}-{value}-{number}", partial(INJECTIONS[target], value, chosen)
                )
                row.count += 1
                if problem:
                    row.lost.append(f"{value} in a {target} at {chosen}: {problem}")
        args = ["pretrain", "--out", "never", "--optim.max_skipped_steps", "3", *training_options(ITERATIONS)]
        ended = run(args, folder, partial(poison_sample, math.nan, range(ITERATIONS)))
        row.count += 1
        if "not finite" not in ended.sentence:
            row.lost.append(f"NaN in all steps: {ended.problem or f'exit code {ended.code}'}")
        row.result = f"{row.count - len(row.lost)} skipped and named with their files, or ended in one sentence"


def _train_injected(folder: Path, name: str, sabotage: Callable[[], None]) -> str | None:
    """Train with values that are not finite in two steps; return what is wrong with the run."""
    ended = run(["pretrain", "--out", name, *training_options(ITERATIONS)], folder, sabotage)
    if ended.code:
        return ended.problem or ended.sentence
    trained = Run(folder / name)
    skipped = list(trained.metrics("skipped"))
    if len(skipped) != 2 or not all(entry["files"] for entry in skipped):
        return f"{len(skipped)} skipped steps were logged"
    weights = load_file(trained.weights)
    return None if all(bool(tensor.isfinite().all()) for tensor in weights.values()) else "the weights are not finite"


def poison_sample(value: float, iterations: Container[int]) -> None:
    """Replace a crop in the steps of these iterations."""
    inputs = Trainer.inputs

    def poisoned(self: Trainer, batch: Batch) -> dict[str, Inputs]:
        result = inputs(self, batch)
        if self.iteration in iterations:
            next(iter(result.values())).crops[0, 0] = value
        return result

    Trainer.inputs = poisoned  # type: ignore[method-assign]


def poison_gradient(value: float, iterations: Container[int]) -> None:
    """Replace the first gradient in the steps of these iterations."""
    step = Step.__call__

    def poisoned(self: Step, inputs: Mapping[str, Inputs], iteration: int) -> tuple[dict[str, Outcome], torch.Tensor]:
        if iteration not in iterations:
            return step(self, inputs, iteration)
        weight = next(self.network.parameters())
        handle = weight.register_hook(lambda gradient: torch.full_like(gradient, value))
        try:
            return step(self, inputs, iteration)
        finally:
            handle.remove()

    Step.__call__ = poisoned  # type: ignore[method-assign]


INJECTIONS = {"sample": poison_sample, "gradient": poison_gradient}


# ---- data without information


def _write_constant(folder: Path, colour: int) -> None:
    for kind in ("images", "videos"):
        (folder / kind).mkdir()
    for number in range(30):
        pixels = np.full((64, 72, 3), colour, np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:02}.png")
        write_video(folder / "videos" / f"{number:02}.mp4", [pixels] * 8)


def _is_finite(trained: Run) -> bool:
    def finite(value: object) -> bool:
        if isinstance(value, dict):
            return all(map(finite, value.values()))
        if isinstance(value, list):
            return all(map(finite, value))
        return not isinstance(value, float) or math.isfinite(value)

    return all(finite(entry) for entry in trained.metrics())


# ---- weights

COMMANDS: dict[str, Callable[[Path], list[object]]] = {
    "--init": lambda weights: ["pretrain", "--out", "other", "--init", weights, *training_options(ITERATIONS)],
    "embed": lambda weights: ["embed", "images", "--weights", weights, "--out", "embedded.csv"],
    "export": lambda weights: ["export", weights, "--format", "torchvision", "--out", "exported.pth"],
}


def _use_weights(campaign: Campaign, value: float, command: str) -> str | None:
    """Give weights with a value that is not finite to a command; return what is wrong with its answer."""
    folder = campaign.folder / "constant-0"
    sound = load_file(Run(folder / "run").weights)
    numbers = sorted(name for name, tensor in sound.items() if tensor.is_floating_point())
    name = campaign.rng("weights", value, command).choice(numbers)
    sound[name] = sound[name].clone()
    sound[name].view(-1)[0] = value
    weights = folder / "not-finite.safetensors"
    save_file(sound, weights, {"architecture": "tiny"})  # without a checksum, as of another program
    ended = run(COMMANDS[command](weights), folder)
    if ended.problem:
        return ended.problem
    return None if "not finite" in ended.sentence else f"exit code {ended.code}: {ended.sentence}"
