"""One training step: shuffled crops in, moved weights out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.accelerator import has_kernels
from unshuffle.errors import UserError
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.policy.groups import select
from unshuffle.policy.sampler import Proposal
from unshuffle.training.optim import Optimisers

REHEARSALS = 3


@dataclass(frozen=True)
class Outcome:
    """The figures of one step of a task, on the device and without waiting for it."""

    loss: Tensor
    accuracy: Tensor
    permutations: Tensor
    """(B, M) the permutations that were trained on."""
    groups: Tensor | None = None
    """(B, M) the groups of the (sample, permutation) pairs, if the permutations were selected among candidates."""


@dataclass(frozen=True)
class Answer:
    """The network's answer for a task's batch, and the target."""

    logits: Tensor
    """(B, M, |Ψ|)"""
    labels: Tensor
    """(B, M) the permutations that were applied."""
    log_prior: Tensor | None
    groups: Tensor | None
    """(B, M) the groups of the pairs, if the permutations were selected among candidates."""

    @property
    def loss(self) -> Tensor:
        """Cross-entropy; a prior is added to the logits, so that the classifier is not biased by the sampling."""
        logits = self.logits.float() if self.log_prior is None else self.logits.float() + self.log_prior
        return F.cross_entropy(logits.flatten(0, 1), self.labels.flatten())

    def outcome(self, loss: Tensor) -> Outcome:
        """Return the figures of the step."""
        accuracy = (self.logits.detach().argmax(dim=-1) == self.labels).float().mean()
        return Outcome(loss, accuracy, self.labels, self.groups)


class ForwardPass(nn.Module):
    """The forward pass of a step, in one module because DistributedDataParallel wraps a single call.

    Where a proposal has candidates, they are classified without gradients, and those selected once more with gradients.
    """

    def __init__(self, network: OrderingNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, crops: Mapping[str, Tensor], permutations: Mapping[str, Tensor], proposals: Mapping[str, Proposal]
    ) -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
        """Return the logits, the labels and, after a selection, the groups of each task."""
        answers: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {}
        for task, features in self.network.embed(crops).items():
            labels, groups, selection = proposals[task].permutations, None, proposals[task].selection
            if selection is not None:
                with torch.no_grad():
                    logits = self.network.classify(task, features, permutations[task][labels])
                    _, labels, groups = select(logits, labels, selection.log_weights, selection.noise, selection.count)
            answers[task] = self.network.classify(task, features, permutations[task][labels]), labels, groups
        return answers


class Step:
    """Forward, loss, backward and update of an ordering network; the tasks' losses are summed."""

    def __init__(
        self, forward_pass: nn.Module, permutations: Mapping[str, Tensor], optimisers: Optimisers, precision: str
    ) -> None:
        """`forward_pass`: a ForwardPass, or one whose gradients are averaged over processes."""
        self.forward_pass, self.permutations, self.optimisers = forward_pass, permutations, optimisers
        self.precision = precision

    def __call__(
        self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal], iteration: int
    ) -> dict[str, Outcome]:
        """Learn from (B, P, 3, S, S) crops of each task, put into the proposed orders."""
        self.optimisers.zero_grad()
        outcomes = self._gradients(crops, proposals)
        self.optimisers.step(iteration)
        return outcomes

    def _gradients(self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal]) -> dict[str, Outcome]:
        answers = self.forward(crops, proposals)
        losses = self.backward(answers)
        return {task: answer.outcome(losses[task]) for task, answer in answers.items()}

    def forward(self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal]) -> dict[str, Answer]:
        """The answer to each task."""
        device = next(iter(crops.values())).device
        # a recording must not depend on casts that were kept from before it
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
            answers = self.forward_pass(crops, self.permutations, proposals)
        return {
            task: Answer(logits, labels, proposals[task].log_prior, groups)
            for task, (logits, labels, groups) in answers.items()
        }

    def backward(self, answers: Mapping[str, Answer]) -> dict[str, Tensor]:
        """Gradients of the sum of the tasks' losses, which come back."""
        losses = {task: answer.loss for task, answer in answers.items()}
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        return {task: loss.detach() for task, loss in losses.items()}


class GraphedStep(Step):
    """The same on a GPU, recorded once as a CUDA graph: launching its hundreds of kernels one by one takes too long.

    There is a graph for each set of tasks and shapes. What goes in is copied to where the graph expects it.
    """

    def __init__(
        self, forward_pass: nn.Module, permutations: Mapping[str, Tensor], optimisers: Optimisers, precision: str
    ) -> None:
        super().__init__(forward_pass, permutations, optimisers, precision)
        self._graphs: dict[tuple[object, ...], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()  # recordings take turns, so they share their memory
        self._parameters = list(forward_pass.parameters())
        self._no_prior = {task: torch.zeros(len(rows), device=rows.device) for task, rows in permutations.items()}

    def __call__(
        self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal], iteration: int
    ) -> dict[str, Outcome]:
        """Learn from a batch; the first of its shapes is recorded."""
        inputs = {task: (crops[task], *self._tensors(task, proposals[task])) for task in crops}
        shapes = tuple((task, *(one.shape for one in some)) for task, some in inputs.items())
        if shapes not in self._graphs:
            self._graphs[shapes] = self._record(inputs, proposals)
        recording = self._graphs[shapes]
        recording.replay(inputs)
        for parameter, gradient in zip(self._parameters, recording.gradients, strict=True):
            parameter.grad = gradient  # each recording writes its gradients to places of its own
        self.optimisers.step(iteration)
        return recording.outcomes

    def _tensors(self, task: str, proposal: Proposal) -> tuple[Tensor, ...]:
        """A prior of nothing changes nothing, and the graph need not know whether there is one."""
        prior = self._no_prior[task] if proposal.log_prior is None else proposal.log_prior
        selection = proposal.selection
        return proposal.permutations, prior, *(() if selection is None else (selection.log_weights, selection.noise))

    def _record(self, inputs: Mapping[str, tuple[Tensor, ...]], proposals: Mapping[str, Proposal]) -> "_Recording":
        places = {task: tuple(torch.clone(one) for one in some) for task, some in inputs.items()}

        def run() -> dict[str, Outcome]:
            self.optimisers.zero_grad()
            placed = {task: _placed(proposals[task], some[1:]) for task, some in places.items()}
            return self._gradients({task: some[0] for task, some in places.items()}, placed)

        self._rehearse(run)
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads prepare batches meanwhile, and what they ask of the GPU is no part of this
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outcomes = run()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"the training step cannot be recorded as a CUDA graph ({reason}): a network that waits for the GPU "
                "in its forward pass needs optim.precision fp32"
            ) from error
        return _Recording(graph, places, [parameter.grad for parameter in self._parameters], outcomes)

    def _rehearse(self, run: Callable[[], object]) -> None:
        """Let the libraries choose their algorithms before the recording, and leave no trace of it."""
        buffers = [buffer.clone() for buffer in self.forward_pass.buffers()]
        state = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(REHEARSALS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(state)
        for buffer, before in zip(self.forward_pass.buffers(), buffers, strict=True):
            buffer.copy_(before)


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    places: dict[str, tuple[Tensor, ...]]
    gradients: list[Tensor | None]
    outcomes: dict[str, Outcome]

    def replay(self, inputs: Mapping[str, tuple[Tensor, ...]]) -> None:
        for task, some in inputs.items():
            for place, value in zip(self.places[task], some, strict=True):
                place.copy_(value)
        self.graph.replay()


def build_step(
    network: OrderingNetwork,
    permutations: Mapping[str, Tensor],
    optimisers: Optimisers,
    precision: str,
    device: torch.device,
) -> Step:
    """The step for a device: bf16 on a GPU is for speed, and gets all of it."""
    if precision == "bf16" and has_kernels(device):
        return GraphedStep(ForwardPass(network), permutations, optimisers, precision)
    return Step(ForwardPass(network), permutations, optimisers, precision)


def _placed(proposal: Proposal, tensors: tuple[Tensor, ...]) -> Proposal:
    """A proposal like another, of other tensors."""
    permutations, prior, *rest = tensors
    selection = proposal.selection and replace(proposal.selection, log_weights=rest[0], noise=rest[1])
    return Proposal(permutations, prior, selection)
