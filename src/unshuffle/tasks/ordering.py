"""What the ordering tasks have in common: a permutation set Ψ, a sampler, and a classifier of permutations.

Axes: B samples, P parts of a sample (tiles or frames), M permutations of a sample, K candidates for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import Config, OrderingConfig
from unshuffle.data.crops import permute, render
from unshuffle.data.squares import RankSlice
from unshuffle.errors import UserError
from unshuffle.models.heads import Head, build_head
from unshuffle.permutations import load_permutations, permutation_set
from unshuffle.policy import build_sampler
from unshuffle.policy.groups import select
from unshuffle.policy.sampler import Observation, SampleCounts, Sampler
from unshuffle.policy.state import PermutationValidation, merge_validations, validate
from unshuffle.policy.uniform import propose_uniformly
from unshuffle.randomness import stream_seed, torch_generator
from unshuffle.tasks.base import Network, Outcome, Task


class OrderingTask(Task):
    """Recognises which permutation of Ψ was applied to the parts of a sample."""

    settings: OrderingConfig

    def __init__(
        self,
        config: Config,
        device: torch.device | None = None,
        permutations: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Use the given permutation set, such as the one that a run folder keeps, or choose one."""
        super().__init__(config, device)
        self.parts = self.settings.parts
        self._given = permutations

    @property
    def frame_span(self) -> int:
        """Frames of a video that the parts are taken from; 0 means all of them."""
        return 0

    @cached_property
    def permutations(self) -> Tensor:
        """Ψ, (|Ψ|, P) on the device."""
        rows = self._choose_permutations() if self._given is None else self._given
        count, parts = rows.shape
        if parts != self.parts:
            raise UserError(
                f"{self.settings.permutation_file} is for {parts} parts, but the {self.name} task has {self.parts}"
            )
        if self.config.policy.sampler != "uniform" and self.config.policy.num_groups > count:
            raise UserError(
                f"policy.num_groups is {self.config.policy.num_groups}, but the {self.name} task has only {count} "
                "permutations"
            )
        return torch.from_numpy(rows).to(self.device)

    def _choose_permutations(self) -> npt.NDArray[np.int64]:
        if self.settings.permutation_file is not None:
            return load_permutations(self.settings.permutation_file.expanduser())
        return permutation_set(
            self.parts,
            self.settings.permutations,
            criterion=self.config.permutations.criterion,
            include_identity=self.config.permutations.include_identity,
            seed=self.config.seed,
        )

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler that proposes permutations of Ψ."""
        seed = int(stream_seed(self.config.seed, "policy", self.name).generate_state(1)[0])
        return build_sampler(self.config.policy, len(self.permutations), seed, self.config.lr_changes)

    @cached_property
    def sampled(self) -> SampleCounts:
        """How often each permutation and group was trained on since the last validation."""
        return SampleCounts(len(self.permutations), self.config.policy.num_groups)

    @property
    def chance(self) -> float:
        """Error at chance level."""
        return 1 - 1 / len(self.permutations)

    @classmethod
    def easier(cls, choices: int) -> dict[str, Any]:
        """Return few permutations."""
        return {"permutations": choices}

    def targets(self, batch: int, generator: torch.Generator, part: RankSlice) -> dict[str, Tensor]:
        """Return the proposed permutations (B, M), or candidates (B, K) and what is needed to choose among them."""
        whole = self.sampler.propose(batch, self.config.permutations.per_sample, generator)
        proposal = whole.rows(part.rows(batch))
        targets = {"permutations": proposal.permutations}
        if proposal.log_prior is not None:
            targets["log_prior"] = proposal.log_prior
        if proposal.selection is not None:
            targets |= {"log_weights": proposal.selection.log_weights, "noise": proposal.selection.noise}
        return targets

    def build_head(self, features: int) -> nn.Module:
        """Return fc6 for each part and a classifier of their permutation."""
        return build_head(features, self.parts, len(self.permutations), self.settings.head)

    def outcome(self, head: nn.Module, features: Tensor, targets: Mapping[str, Tensor]) -> Outcome:
        """Cross-entropy of the applied permutations.

        With a log prior, the logits are corrected so that the classifier is not biased by the sampling distribution.
        """
        assert isinstance(head, Head)
        embeddings, labels = head.embed(features), targets["permutations"]
        sampled = {}
        if "noise" in targets:
            with torch.no_grad():
                logits = head.order_classifier(embeddings)(self.permutations[labels])
                count = self.config.permutations.per_sample
                _, labels, groups = select(logits, labels, targets["log_weights"], targets["noise"], count)
            sampled["groups"] = groups
        logits = self._classify(head, embeddings, labels)
        corrected = logits.float() + targets["log_prior"] if "log_prior" in targets else logits.float()
        loss = F.cross_entropy(corrected.flatten(0, 1), labels.flatten())
        accuracy = (logits.detach().argmax(dim=-1) == labels).float().mean()
        return Outcome(loss, accuracy, {"permutations": labels, **sampled})

    def _classify(self, head: Head, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return logits (B, M, |Ψ|) after applying the permutations with (B, M) labels to (B, P, fc6) embeddings."""
        return self._classify_permuted(head, embeddings, self.permutations[labels])

    @staticmethod
    def _classify_permuted(head: Head, embeddings: Tensor, permutations: Tensor) -> Tensor:
        """Return logits (B, M, |Ψ|) after applying (B, M, P) permutations to (B, P, fc6) embeddings."""
        shuffled = permute(embeddings, permutations)
        logits: Tensor = head.classify(shuffled.flatten(0, 1)).unflatten(0, shuffled.shape[:2])
        return logits

    def shuffle(
        self, images: Tensor, labels: Tensor | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the shuffled, normalised crops (B, P, 3, S, S) of a batch, and the labels (B,) of their permutations.

        For training loops other than unshuffle's. `images` are (B, 3, H, W) or, for the frames of clips,
        (B, P, 3, H, W): bytes, or floats in [0, 1]; their centre square is used, which for a frame is the crop. Tiles
        and colours are random with a generator, on the task's device, and fixed without one. `labels` index Ψ
        (`permutations`); by default each permutation is equally likely.
        """
        frames = (images if images.ndim == 5 else images[:, None]).to(self.device)
        expected = 1 if self.medium == "images" else self.parts
        if frames.ndim != 5 or frames.shape[1] != expected or frames.shape[2] != 3:
            wanted = "(B, 3, H, W)" if expected == 1 else f"(B, {expected}, 3, H, W)"
            raise UserError(f"the {self.name} task shuffles {wanted} images, not {tuple(images.shape)}")
        if frames.is_floating_point():
            frames = (frames * 255).round().clamp(0, 255).byte()
        height, width = frames.shape[3:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        squares = frames[..., top : top + side, left : left + side].flatten(0, 1).permute(0, 2, 3, 1).contiguous()
        crops = render(squares, self.plan_crops(len(frames), side, generator), self.settings.crop_size)
        if labels is None:
            labels = propose_uniformly(len(self.permutations), len(frames), 1, generator or self._uniform).permutations
            labels = labels[:, 0]
        labels = labels.to(self.device)
        return permute(crops, self.permutations[labels[:, None]])[:, 0], labels

    @cached_property
    def _uniform(self) -> torch.Generator:
        """The generator of labels where none is given."""
        return torch_generator(self.device, self.config.seed, "shuffle", self.name)

    def recognise(self, network: Network, crops: Tensor, labels: Tensor) -> Tensor:
        """Return the labels (B,) that the network assigns to crops (B, P, ...) shuffled by permutations (B,)."""
        return self.answer(network, crops, self.permutations[labels]).argmax(dim=1)

    def answer(self, network: Network, crops: Tensor, permutations: Tensor) -> Tensor:
        """Return the logits (B, |Ψ|) for crops (B, P, ...) shuffled by permutations (B, P), also such as Ψ lacks."""
        with network.evaluation_mode():
            head = network.heads[self.name]
            assert isinstance(head, Head)
            embeddings = head.embed(network.features({self.name: crops})[self.name])
            return self._classify_permuted(head, embeddings, permutations[:, None])[:, 0]

    def validate(self, network: Network, crops: Iterable[Tensor]) -> PermutationValidation:
        """Apply every permutation of Ψ to every sample; the backbone and fc6 run once for each part."""
        head = network.heads[self.name]
        assert isinstance(head, Head)
        with network.evaluation_mode():
            embeddings = (head.embed(network.features({self.name: chunk})[self.name]) for chunk in crops)
            return validate(head, embeddings, self.permutations)

    def merge(self, parts: Sequence[PermutationValidation]) -> PermutationValidation:
        """Return one validation from those of slices of X_val."""
        return merge_validations(parts)

    def observe(self, validation: PermutationValidation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        """Let the sampler learn from a validation and from what was trained on since the one before."""
        observation = self.sampler.observe(validation, self.sampled, iteration, ends=ends, begins=begins)
        self.sampled.reset()
        return observation

    def resume(self) -> Observation:
        """Let a restored sampler continue, and return its record.

        What was sampled since its last validation counts at the next one.
        """
        record = self.sampler.resume(self.sampled)
        return replace(record, arrays={"sampled": np.zeros(len(self.permutations), np.float32), **record.arrays})

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"sampler": self.sampler.state_dict(), "sampled": self.sampled.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.sampler.load_state_dict(state["sampler"])
        self.sampled.load_state_dict(state["sampled"])
