"""One training step: crops and targets in, updated weights out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.tasks.base import Inputs, Outcome
from unshuffle.training.optim import Optimisers

WARMUP_RUNS = 3  # before a CUDA graph is captured


@dataclass
class Step:
    """Forward pass, weighted sum of the tasks' losses, backward pass and update."""

    network: nn.Module
    loss_weights: Mapping[str, float]
    optimisers: Optimisers
    precision: str

    def __call__(self, inputs: Mapping[str, Inputs], iteration: int) -> dict[str, Outcome]:
        """Learn from a batch of each task."""
        self.optimisers.zero_grad()
        outcomes = self._gradients(inputs)
        self.optimisers.step(iteration)
        return outcomes

    def _gradients(self, inputs: Mapping[str, Inputs]) -> dict[str, Outcome]:
        outcomes = self.forward(inputs)
        self.backward(outcomes)
        return {task: replace(outcome, loss=outcome.loss.detach()) for task, outcome in outcomes.items()}

    def forward(self, inputs: Mapping[str, Inputs]) -> dict[str, Outcome]:
        """Return loss and accuracy of each task."""
        device = next(iter(inputs.values())).crops.device
        # a CUDA graph must not depend on casts that were cached before it was captured
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
            outcomes: dict[str, Outcome] = self.network(inputs)
        return outcomes

    def backward(self, outcomes: Mapping[str, Outcome]) -> None:
        """Compute the gradients of the weighted sum of the losses."""
        losses = [self.loss_weights[task] * outcome.loss for task, outcome in outcomes.items()]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]


@dataclass
class GraphedStep(Step):
    """The same on a GPU as a captured CUDA graph: launching its hundreds of kernels one by one takes too long.

    There is a graph for each set of tasks and input shapes; inputs are copied into the tensors of its capture.
    """

    def __post_init__(self) -> None:
        self._graphs: dict[object, _CapturedStep] = {}
        self._pool = torch.cuda.graph_pool_handle()  # only one graph runs at a time, so all share their memory
        self._parameters = list(self.network.parameters())

    def __call__(self, inputs: Mapping[str, Inputs], iteration: int) -> dict[str, Outcome]:
        """Learn from a batch of each task; the first batch of its shapes is captured."""
        tensors = {task: batch.tensors() for task, batch in inputs.items()}
        shapes = tuple((task, name, tensor.shape) for task, named in tensors.items() for name, tensor in named.items())
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(tensors)
        captured = self._graphs[shapes]
        captured.replay(tensors)
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            parameter.grad = gradient  # each graph has gradient tensors of its own
        self.optimisers.step(iteration)
        return captured.outcomes

    def _capture(self, tensors: "_Tensors") -> "_CapturedStep":
        static = {
            task: {name: torch.clone(tensor) for name, tensor in named.items()} for task, named in tensors.items()
        }

        def run() -> dict[str, Outcome]:
            self.optimisers.zero_grad()
            return self._gradients({task: Inputs.of(named) for task, named in static.items()})

        self._warm_up(run)
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads use the GPU meanwhile to prepare batches, which must not be captured
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outcomes = run()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"the training step cannot be captured as a CUDA graph ({reason}): a network that synchronises with "
                "the GPU in its forward pass needs optim.precision fp32"
            ) from error
        return _CapturedStep(graph, static, [parameter.grad for parameter in self._parameters], outcomes)

    def _warm_up(self, run: Callable[[], object]) -> None:
        """Let the libraries choose their algorithms before the capture, and restore buffers and random state."""
        buffers = [buffer.clone() for buffer in self.network.buffers()]
        state = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(state)
        for buffer, before in zip(self.network.buffers(), buffers, strict=True):
            buffer.copy_(before)


_Tensors = Mapping[str, Mapping[str, Tensor]]
"""The input tensors of each task by name."""


@dataclass(frozen=True)
class _CapturedStep:
    graph: torch.cuda.CUDAGraph
    inputs: _Tensors
    gradients: list[Tensor | None]
    outcomes: dict[str, Outcome]

    def replay(self, tensors: _Tensors) -> None:
        for task, named in tensors.items():
            for name, tensor in named.items():
                self.inputs[task][name].copy_(tensor)
        self.graph.replay()
