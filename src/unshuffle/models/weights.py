"""Saving and loading of backbones: safetensors with the metadata to use them, and state dicts of other programs."""

import json
import re
import shlex
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from unshuffle.config import PRETRAINED
from unshuffle.errors import UserError
from unshuffle.files import atomic_write, check_zip
from unshuffle.models.batch_norm import fold_layers
from unshuffle.models.hub import WEIGHTS as HUB_WEIGHTS
from unshuffle.models.hub import hub_weights, is_on_hub
from unshuffle.models.registry import Backbone, Normalisation, build_backbone
from unshuffle.models.torchvision_timm import candidates, config_beside, full_name, same_architecture
from unshuffle.runs.run import WEIGHTS_NAME, Run
from unshuffle.wording import listed

METADATA = "unshuffle"
"""Key under which a state dict written by `unshuffle export` carries its metadata."""
CHECKSUM = "crc32"
"""Key of the metadata for the checksum over the rest of the header and the tensors."""
ITERATIONS = "iterations"
"""Key of the metadata for the number of training steps behind the weights of a run."""
PRETRAINED_FILE = Path(__file__).parents[1] / "weights" / "pretrained.safetensors"
_PICKLED = (".pth", ".pt", ".tar", ".bin")

Weights = dict[str, Tensor]


def save_backbone(
    backbone: Backbone,
    path: Path,
    *,
    crop_sizes: Mapping[str, int],
    permutations: Mapping[str, npt.NDArray[np.int64]],
    iterations: int = 0,
) -> None:
    """Write a backbone with its registered name, the crop sizes and permutation sets of its tasks, and for how many
    iterations it was trained."""
    metadata = {
        **describe(backbone),
        **({ITERATIONS: str(iterations)} if iterations else {}),
        **{f"{task}_crop_size": str(size) for task, size in crop_sizes.items()},
        **{f"{task}_permutations": json.dumps(rows.tolist()) for task, rows in permutations.items()},
    }
    write_weights(backbone, metadata, path)


def describe(backbone: Backbone) -> dict[str, str]:
    """Return the metadata that is needed to use a backbone."""
    return {
        "architecture": backbone.architecture,
        "input_size": str(backbone.eval_size),
        "normalisation": backbone.normalisation.to_json(),
    }


def write_weights(backbone: nn.Module, metadata: dict[str, str], path: Path, *, half: bool = False) -> None:
    """Write a backbone, or a module that contains one, with the given metadata; the file appears only when complete.

    `half`: matrices and convolutions in fp16, which is half the size; biases and statistics, which are few, stay fp32.
    """
    weights = {key: value.detach().cpu().contiguous() for key, value in backbone.state_dict().items()}
    if half:
        weights = {
            key: value.half() if value.ndim > 1 and value.is_floating_point() else value
            for key, value in weights.items()
        }
        if not all(value.isfinite().all() for value in weights.values()):
            raise UserError(f"{path} was not written: the weights are too large for fp16")
    with atomic_write(path) as draft:
        draft.write_bytes(_with_checksum(save(weights, metadata)))


def _with_checksum(content: bytes) -> bytes:
    """Return a safetensors file with sorted metadata and a checksum in it.

    The library writes metadata in an arbitrary order; sorted, equal contents give equal bytes. The file begins with
    the length of the header in 8 bytes, then the header, which is JSON padded to a multiple of 8.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    checksum = zlib.crc32(content[end:], zlib.crc32(_header_text(header)))
    header["__metadata__"][CHECKSUM] = f"{checksum:08x}"
    text = _header_text(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def _header_text(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def _check(file: Path) -> None:
    """Raise a UserError if a safetensors file has a checksum that is not that of its header and tensors."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        stated = header.get("__metadata__", {}).pop(CHECKSUM, None)
        if stated is None:  # written by another program, or by an earlier version
            return
        checksum = zlib.crc32(_header_text(header))
        while block := stream.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    if stated != f"{checksum:08x}":
        raise UserError(f"{file} is damaged (wrong checksum): copy it again, or write it again from its run")


def weights_file(path: str | Path) -> Path:
    """Return the file that holds weights: of the package for `pretrained`, of `hf:OWNER/NAME` in the cache of Hugging
    Face, of a run folder, of one that was exported for the hub, or the given file."""
    if str(path) == PRETRAINED:
        if not PRETRAINED_FILE.is_file():
            raise UserError(
                "this installation has no pretrained weights (weights/pretrained.safetensors of the package is "
                "missing): train a backbone with unshuffle pretrain and give its run folder"
            )
        return PRETRAINED_FILE
    if is_on_hub(path):
        return hub_weights(path)
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    exported = path / HUB_WEIGHTS
    return exported if exported.is_file() and not (path / WEIGHTS_NAME).exists() else path / WEIGHTS_NAME


def read_weights(path: str | Path) -> tuple[Weights, dict[str, str]]:
    """Return the tensors and the metadata of the weights that `weights_file` finds."""
    file = weights_file(path)
    if not file.is_file():
        unfinished = Run(file.parent).config_file.is_file()
        hint = f": the run is not finished, continue it with {_resume(file.parent)}" if unfinished else ""
        raise UserError(f"there are no weights at {file}{hint}")
    if file.suffix in _PICKLED or (file.suffix != ".safetensors" and _looks_pickled(file)):
        return _read_pickled(file)
    try:
        with safe_open(file, framework="pt") as stored:
            _check(file)  # after the library has found the header sound
            weights = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
            return weights, {key: value for key, value in (stored.metadata() or {}).items() if key != CHECKSUM}
    except UserError:
        raise
    except (SafetensorError, ValueError):
        hint = f" (files saved by torch must end with {', '.join(_PICKLED)})" if file.suffix != ".safetensors" else ""
        raise UserError(f"{file} is not a complete safetensors file{hint}") from None


def _looks_pickled(file: Path) -> bool:
    """Return whether a file begins as those of torch.save, whatever its name: Lightning's end with .ckpt."""
    with file.open("rb") as stored:
        return stored.read(2).startswith((b"PK", b"\x80"))


def _resume(folder: Path) -> str:
    return f"unshuffle pretrain --out {shlex.quote(str(folder))} --resume"


def _warn_of_older(folder: Path, metadata: Mapping[str, str]) -> None:
    """Warn if the weights of a run are those of its earlier end, because it was made longer and is not finished."""
    run = Run(folder)
    if not (run.config_file.is_file() and metadata.get(ITERATIONS, "").isdecimal()):
        return
    trained = int(metadata[ITERATIONS])
    try:
        planned = run.config.optim.iterations
    except UserError:  # a config of another version, or with tasks of another package: the weights do not need it
        return
    if trained < planned:
        warnings.warn(
            f"the weights in {folder} are those of iteration {trained}, and the run is being trained up to {planned}: "
            f"continue it with {_resume(folder)}",
            stacklevel=3,
        )


def _read_pickled(file: Path) -> tuple[Weights, dict[str, str]]:
    """Return tensors and metadata of a state dict saved by torch, alone or in a checkpoint, without running code."""
    try:
        if is_zipfile(file):  # not the format of torch before 1.6, which has no checksums
            check_zip(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about pickle formats
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except (PermissionError, MemoryError):
        raise
    except BadZipFile as error:
        raise UserError(f"{file} is damaged ({error}): copy or export it again") from None
    except Exception:  # of many kinds: UnpicklingError, KeyError, UnicodeDecodeError ...
        # torch's own message advises to load the file anyway, which would run the code in it
        raise UserError(
            f"{file} cannot be read safely as a state dict: it is damaged, or it contains objects other than tensors, "
            "which could run code; save model.state_dict() instead"
        ) from None
    for key in ("state_dict", "model", "model_state_dict", "weights"):
        if isinstance(stored, dict) and isinstance(stored.get(key), dict):
            stored = stored[key]
    if not isinstance(stored, dict):
        raise UserError(f"{file} contains no state dict")
    metadata = getattr(stored, "_metadata", {}).get(METADATA, {})
    weights = {key: value for key, value in stored.items() if isinstance(value, Tensor)}
    if not weights:
        raise UserError(f"{file} contains no tensors")
    return weights, metadata


def load_into(backbone: Backbone, path: Path) -> None:
    """Load stored weights into a backbone to train it further; it keeps the normalisation of unshuffle's own crops."""
    _load(backbone, *read_weights(path), path, advice="; --backbone chooses the network to train")


def _load(
    backbone: Backbone, weights: Weights, metadata: Mapping[str, str], path: str | Path, advice: str = ""
) -> None:
    """Load weights that fit a backbone; `advice` ends the error about those that do not."""
    name = backbone.architecture
    architecture = metadata.get("architecture", name)
    if not same_architecture(architecture, name):
        raise UserError(f"{path} contains weights of {architecture}, not of {name}{advice}")
    for form in backbone.forms().values():
        fit = _fit(weights, form.state_dict(), path)
        if fit is not None and not fit.unknown:
            if bad := [key for key, value in fit.tensors.items() if not value.isfinite().all()]:
                raise UserError(f"{path} contains values that are not finite, first in {bad[0]}: its training diverged")
            form.load_state_dict(fit.tensors, strict=False)  # only num_batches_tracked may be missing, in old files
            return
    mismatch = f"{_mismatch(weights, backbone, path)}{_nearest(weights, path)}"
    raise UserError(f"{path} does not fit {name}: {mismatch}{advice}")


def _mismatch(weights: Weights, backbone: Backbone, path: str | Path) -> str:
    """Return what is wrong with weights that do not fit a backbone in any of its forms, in words."""
    for form in backbone.forms().values():
        fit = _fit(weights, form.state_dict(), path)
        if fit is not None:
            return f"it also holds {listed(fit.unknown, 1)}, which {backbone.architecture} lacks"
    states = [form.state_dict() for form in backbone.forms().values()]
    nearest = max(states, key=lambda state: len(state.keys() & weights.keys()))
    wanted = {key: value for key, value in nearest.items() if not key.endswith(_CONSTANTS)}
    if missing := [key for key in wanted if key not in weights]:
        return f"it lacks {listed(missing, 1)}"
    key = next(key for key in wanted if weights[key].shape != wanted[key].shape)
    return f"{key} has the shape {tuple(weights[key].shape)}, not {tuple(wanted[key].shape)}"


def load_backbone(path: str | Path, architecture: str | None = None) -> Backbone:
    """Return the backbone stored at `path` in the form that evaluations use.

    `path` is a weights file, a run folder, a folder exported for the Hugging Face hub, `hf:OWNER/NAME` for one in its
    local cache, or `pretrained` for the weights that come with the package. Reads the files that `unshuffle` writes,
    and state dicts (.pth, .pt, .safetensors) of torchvision, timm and others. `architecture` is needed only
    where a file does not name its architecture and is not recognised.
    """
    weights, metadata = read_weights(path)
    if weights_file(path).name == WEIGHTS_NAME:
        _warn_of_older(weights_file(path).parent, metadata)
    if architecture is None and "architecture" not in metadata:
        metadata = {**metadata, **config_beside(weights_file(path))}
    name = (architecture and full_name(architecture)) or metadata.get("architecture") or _recognise(weights, path)
    backbone = _build(name, weights)
    _load(backbone, weights, metadata, path)
    backbone.metadata, stated = metadata, metadata.get("normalisation")
    backbone.normalisation = Normalisation.from_json(stated) if stated else backbone.published_normalisation
    return backbone.for_evaluation()


def _build(name: str, weights: Weights) -> Backbone:
    """Return a new backbone, without batch normalisation if the weights have none."""
    backbone = build_backbone(name)
    if not any(key.endswith("running_mean") for key in weights):
        fold_layers(backbone)
    return backbone


# ---- which architecture a file has


class _Fit(NamedTuple):
    """How weights fit a network that finds all of its tensors in them."""

    tensors: Weights
    """Those of the network, under its names."""
    unknown: list[str]
    """Keys inside the modules of the network that it has no place for: the file is of another network."""
    others: list[str]
    """Keys of other modules that are not known as heads and the like."""


def _recognise(weights: Weights, path: str | Path) -> str:
    """Return the architecture whose names and shapes account for all weights but heads and the like."""
    first, others = candidates(weights, weights_file(path))
    for name in first:
        if _is_of(name, weights, path):
            return name
    fitting = [name for name in others if _is_of(name, weights, path)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UserError(
            f"{path} fits {' and '.join(fitting)} alike, which differ in normalisation or padding: "
            "say which it is with --architecture NAME"
        )
    raise UserError(
        f"{path} does not state its architecture and fits none that is recognised{_nearest(weights, path)}; AlexNet, "
        "ResNets and timm's networks (timm:NAME) can be named with --architecture, others are not supported"
    )


def _is_of(name: str, weights: Weights, path: str | Path) -> bool:
    forms = _meta(name, weights).forms().values()
    fits = (_fit(weights, form.state_dict(), path) for form in forms)
    return any(fit is not None and not fit.unknown and not fit.others for fit in fits)


def _meta(name: str, weights: Weights) -> Backbone:
    """Return a backbone that has names and shapes only."""
    with torch.device("meta"):
        return _build(name, weights)


def _fit(weights: Weights, wanted: Mapping[str, Tensor], path: str | Path) -> _Fit | None:
    """Return how weights fit a network, under its names or with one prefix before all; None if some are missing.

    A second encoder beside it, such as the momentum encoder of MoCo, is left out.
    """
    keys = [key for key in wanted if not key.endswith("num_batches_tracked")]
    prefixes = [stored.removesuffix(keys[0]) for stored in weights if f".{stored}".endswith(f".{keys[0]}")]
    fitting = [
        prefix
        for prefix in prefixes
        if all(prefix + key in weights and weights[prefix + key].shape == wanted[key].shape for key in keys)
    ]
    encoders = [prefix for prefix in fitting if not _is_beside(prefix.split("."))] or fitting
    if not encoders:
        return None
    prefix, *copies = encoders
    if any(not torch.equal(weights[prefix + key], weights[copy + key]) for copy in copies for key in keys):
        raise UserError(f"{path} holds several networks of one architecture ({listed(encoders)}): save one of them")
    modules = {key.partition(".")[0] for key in wanted}
    unknown, others = list[str](), list[str]()
    for key in weights:
        inner = key.removeprefix(prefix)
        module = inner.partition(".")[0]
        if key.startswith(prefix) and (inner in wanted or inner.endswith(_CONSTANTS)):
            continue
        if key.startswith(prefix) and module in modules and not _is_beside([module]):
            unknown.append(key)
        elif not _is_beside([module] if key.startswith(prefix) else key.split(".")):
            others.append(key)
    return _Fit({key: weights[prefix + key] for key in wanted if prefix + key in weights}, unknown, others)


_CONSTANTS = ("num_batches_tracked", "relative_position_index", "attn_mask")
"""Ends of the names of tensors that follow from the architecture, which some versions of programs store."""
_BESIDE = re.compile(
    r"fc\d*|classifiers?\d*|(\w+_)?heads?(_\w+)?|aux\w*|AuxLogits|last_linear|(pre_)?logits|proj\w*|predict\w*|"
    r"prototypes?|queue\w*|decoder\w*|mask_token|(online|linear)_classifier|momentum\w*|\w+_momentum|"
    r"encoder_k|key_encoder|target_\w+|(\w+_)?ema|optimi[sz]er\w*|criterion|loss\w*|mean|std|logit_scale|temperature"
)
"""Names of modules beside a backbone: classifiers, projection heads, decoders, momentum encoders, training state."""


def _is_beside(words: Iterable[str]) -> bool:
    return any(_BESIDE.fullmatch(word) for word in words)


def _nearest(weights: Weights, path: str | Path, count: int = 3, least: float = 0.5) -> str:
    """Return the architectures whose matrices and convolutions have the most shapes in common with a file's."""

    def shapes(tensors: Mapping[str, Tensor]) -> Counter[tuple[int, ...]]:
        kept = [value for key, value in tensors.items() if value.ndim > 1 and not _is_beside(key.split("."))]
        return Counter(tuple(value.shape) for value in kept)

    own, scores = shapes(weights), dict[str, float]()
    for name in chain(*candidates(weights, weights_file(path))):
        theirs = shapes(_meta(name, weights).state_dict())
        scores[name] = (own & theirs).total() / max(1, (own | theirs).total())
    best = [name for name in sorted(scores, key=lambda name: -scores[name])[:count] if scores[name] >= least]
    near = ", ".join(f"{name} ({100 * scores[name]:.0f} % of the shapes{_rest(name, weights, path)})" for name in best)
    return f"; nearest {'are' if len(best) > 1 else 'is'} {near}" if best else ""


def _rest(name: str, weights: Weights, path: str | Path) -> str:
    """Return what a file holds beside a network that it contains in full, in words; nothing if it does not."""
    fits = (_fit(weights, form.state_dict(), path) for form in _meta(name, weights).forms().values())
    rest = next((fit.unknown + fit.others for fit in fits if fit is not None), [])
    return f", but also {listed(rest, 1)}" if rest else ""
