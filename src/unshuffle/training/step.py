"""One training step: shuffled crops in, moved weights out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.accelerator import has_kernels
from unshuffle.policy.samplers import Proposal
from unshuffle.training.optim import Optimisers

REHEARSALS = 3


@dataclass(frozen=True)
class Outcome:
    """How one step went for a task, on the device: nobody has waited for it."""

    loss: Tensor
    accuracy: Tensor


class Step:
    """Forward, loss, backward and update of an ordering network; the tasks' losses are summed."""

    def __init__(
        self, network: nn.Module, permutations: Mapping[str, Tensor], optimisers: Optimisers, precision: str
    ) -> None:
        self.network, self.permutations, self.optimisers = network, permutations, optimisers
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
        logits = self.forward(crops, proposals)
        losses = self.backward(logits, proposals)
        return {
            task: Outcome(loss, _accuracy(logits[task].detach(), proposals[task].permutations))
            for task, loss in losses.items()
        }

    def forward(self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal]) -> dict[str, Tensor]:
        """Logits (B, M, |Ψ|) of each task."""
        device = next(iter(crops.values())).device
        orders = {task: self.permutations[task][chosen.permutations] for task, chosen in proposals.items()}
        # a recording must not depend on casts that were kept from before it
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
            logits: dict[str, Tensor] = self.network(crops, orders)
        return logits

    def backward(self, logits: Mapping[str, Tensor], proposals: Mapping[str, Proposal]) -> dict[str, Tensor]:
        """Gradients of the sum of the tasks' losses, which come back."""
        losses = {task: _loss(logits[task], proposals[task]) for task in logits}
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        return {task: loss.detach() for task, loss in losses.items()}


class GraphedStep(Step):
    """The same on a GPU, recorded once as a CUDA graph: launching its hundreds of kernels one by one takes too long.

    There is a graph for each set of tasks that a step may have. What goes in is copied to where the graph expects it.
    """

    def __init__(
        self, network: nn.Module, permutations: Mapping[str, Tensor], optimisers: Optimisers, precision: str
    ) -> None:
        super().__init__(network, permutations, optimisers, precision)
        self._graphs: dict[tuple[str, ...], _Recording] = {}
        self._last: _Recording | None = None
        self._no_prior = {task: torch.zeros(len(rows), device=rows.device) for task, rows in permutations.items()}

    def __call__(
        self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal], iteration: int
    ) -> dict[str, Outcome]:
        """Learn from a batch of the shapes of the first one."""
        inputs = {task: (crops[task], proposals[task].permutations, self._prior(task, proposals)) for task in crops}
        if tuple(inputs) not in self._graphs:
            self._graphs[tuple(inputs)] = self._record(inputs)
        recording = self._graphs[tuple(inputs)]
        recording.replay(inputs)
        if recording is not self._last:  # each recording writes its gradients to places of its own
            self._last = recording
            for parameter, gradient in zip(self.network.parameters(), recording.gradients, strict=True):
                parameter.grad = gradient
        self.optimisers.step(iteration)
        return recording.outcomes

    def _prior(self, task: str, proposals: Mapping[str, Proposal]) -> Tensor:
        """A prior of nothing changes nothing, and the graph need not know whether there is one."""
        prior = proposals[task].log_prior
        return self._no_prior[task] if prior is None else prior

    def _record(self, inputs: Mapping[str, tuple[Tensor, Tensor, Tensor]]) -> "_Recording":
        places = {task: tuple(torch.clone(one) for one in some) for task, some in inputs.items()}

        def run() -> dict[str, Outcome]:
            self.optimisers.zero_grad()
            proposals = {task: Proposal(drawn, prior) for task, (_, drawn, prior) in places.items()}
            return self._gradients({task: crops for task, (crops, _, _) in places.items()}, proposals)

        self._rehearse(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outcomes = run()
        gradients = [parameter.grad for parameter in self.network.parameters()]
        return _Recording(graph, places, gradients, outcomes)

    def _rehearse(self, run: Callable[[], object]) -> None:
        """Let the libraries choose their algorithms before the recording, and leave no trace of it."""
        buffers = [buffer.clone() for buffer in self.network.buffers()]
        state = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(REHEARSALS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(state)
        for buffer, before in zip(self.network.buffers(), buffers, strict=True):
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
    network: nn.Module,
    permutations: Mapping[str, Tensor],
    optimisers: Optimisers,
    precision: str,
    device: torch.device,
) -> Step:
    """The step for a device: bf16 on a GPU is for speed, and gets all of it."""
    if precision == "bf16" and has_kernels(device):
        return GraphedStep(network, permutations, optimisers, precision)
    return Step(network, permutations, optimisers, precision)


def _loss(logits: Tensor, proposal: Proposal) -> Tensor:
    """Cross-entropy; with a prior, of logits that need not know how often each permutation is drawn."""
    logits = logits.float() if proposal.log_prior is None else logits.float() + proposal.log_prior
    return F.cross_entropy(logits.flatten(0, 1), proposal.permutations.flatten())


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(dim=-1) == labels).float().mean()
