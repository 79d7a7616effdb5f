"""Where data, network, permutation sets, samplers and monitor are put together."""

import numpy as np
import numpy.typing as npt
import torch

from unshuffle.accelerator import choose_device
from unshuffle.config import Config
from unshuffle.data.dataset import Square, load_images, open_dataset, synthetic_dataset
from unshuffle.data.prepare import Data
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError
from unshuffle.evaluation.retrieval import RetrievalMonitor
from unshuffle.models import Backbone, build_backbone
from unshuffle.models.heads import build_head
from unshuffle.models.norm import synchronise
from unshuffle.models.ordering import OrderingNetwork, backbone_features
from unshuffle.models.weights import load_into
from unshuffle.permutations import load_permutations, permutation_set
from unshuffle.policy.samplers import build_sampler
from unshuffle.randomness import seed_everything, stream_seed
from unshuffle.run import Run
from unshuffle.training.trainer import Monitor, Trainer

PermutationSets = dict[str, npt.NDArray[np.int64]]


def build_trainer(
    config: Config, data: Data, permutations: PermutationSets | None = None, monitor: Monitor | None = None
) -> Trainer:
    """Network and samplers for a config and its data, on the config's device."""
    device = choose_device(config.device)
    seed_everything(config.seed)
    if permutations is None:
        permutations = permutation_sets(config, list(data.training))
    return Trainer(
        config,
        data,
        build_network(config, permutations),
        {task: torch.from_numpy(rows) for task, rows in permutations.items()},
        {
            task: build_sampler(config.policy, len(rows), _seed(config, "policy", task))
            for task, rows in permutations.items()
        },
        device,
        monitor,
    )


def build_network(config: Config, permutations: PermutationSets) -> OrderingNetwork:
    """A new network with a head for each set of permutations."""
    backbone = initial_backbone(config)
    if config.model.sync_bn:
        synchronise(backbone)
    features = backbone_features(backbone, config.shuffle.crop_size, "shuffle.crop_size")
    heads = {
        task: build_head(features, rows.shape[1], len(rows), getattr(config.model, task))
        for task, rows in permutations.items()
    }
    return OrderingNetwork(backbone, heads)


def initial_backbone(config: Config) -> Backbone:
    """A new backbone, with the given weights if there are some."""
    backbone = build_backbone(config.model.backbone)
    if config.init is not None:
        load_into(backbone, config.model.backbone, config.init.expanduser())
    return backbone


def permutation_sets(config: Config, tasks: list[str]) -> PermutationSets:
    """Ψ of each task, chosen by the config's criterion or read from the config's file."""
    parts = {"spatial": config.shuffle.tiles, "temporal": config.shuffle.frames}
    sets = {}
    for task in tasks:
        file = getattr(config.permutations, f"{task}_file")
        sets[task] = _chosen(config, task, parts[task]) if file is None else load_permutations(file.expanduser())
        count, length = sets[task].shape
        if length != parts[task]:
            raise UserError(f"{file} is for {length} parts, but the {task} task has {parts[task]}")
        if config.policy.sampler != "uniform" and config.policy.groups > count:
            raise UserError(
                f"policy.groups is {config.policy.groups}, but the {task} task has only {count} permutations"
            )
    return sets


def _chosen(config: Config, task: str, parts: int) -> npt.NDArray[np.int64]:
    return permutation_set(
        parts,
        getattr(config.permutations, task),
        criterion=config.permutations.criterion,
        include_identity=config.permutations.include_identity,
        seed=config.seed,
    )


def stored_permutation_sets(run: Run, tasks: list[str]) -> PermutationSets:
    """Ψ as the run folder keeps it."""
    return {task: load_permutations(run.permutations / f"{task}.npy") for task in tasks}


def build_monitor(config: Config) -> RetrievalMonitor | None:
    """Return retrieval on the given labelled data, or on the synthetic world if that is trained on, or None."""
    device, monitor = choose_device(config.device), config.monitor
    if monitor.gallery is not None and monitor.queries is not None:
        square, cache = Square(build_backbone(config.model.backbone).eval_size), config.data.cache
        gallery = load_images(open_dataset(monitor.gallery, square=square, frames=1, cache=cache), monitor.limit)
        queries = load_images(
            open_dataset(monitor.queries, square=square, frames=1, cache=cache, classes=gallery.classes), monitor.limit
        )
        return RetrievalMonitor(gallery, queries, device)
    if config.images is not None or config.videos is not None:
        return None
    gallery, queries = (
        load_images(
            synthetic_dataset(synthetic_images(count, config.synthetic.image_size, _seed(config, "monitor", name)))
        )
        for name, count in (("gallery", config.synthetic.gallery), ("queries", config.synthetic.queries))
    )
    return RetrievalMonitor(gallery, queries, device)


def _seed(config: Config, *where: str) -> int:
    return int(stream_seed(config.seed, *where).generate_state(1)[0])
