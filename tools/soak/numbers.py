"""Part f: numbers that training cannot use: constant images, identical frames, values that are not finite."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import load_file, save_file

from soak.campaign import Campaign
from soak.commands import run
from soak.samples import training_options, write_video
from unshuffle.runs.run import Run

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
    """Inject NaN and infinity into losses and gradients while a run trains.

    Steps with such values are not skipped yet. When they are, this is where they are injected (as `sabotage` of
    `soak.commands.run`), and where the count of skipped steps and the batch's files are checked.
    """


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
