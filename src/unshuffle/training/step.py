"""One training step: crops and targets in, updated weights out.

A step whose loss or gradients are not finite is skipped: weights, optimisers and the running statistics of batch
normalisation stay as they were. This is decided on the device, so that no step waits for the one before.
"""

from collections.abc import Callable, Iterable, Mapping
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

    def __call__(self, inputs: Mapping[str, Inputs], iteration: int) -> tuple[dict[str, Outcome], Tensor]:
        """Learn from a batch of each task; also return whether the step was skipped, as a bool on the device."""
        self.optimisers.zero_grad()
        outcomes, skipped = self._gradients(inputs)
        self.optimisers.step(iteration, skipped)
        return outcomes, skipped

    def _gradients(self, inputs: Mapping[str, Inputs]) -> tuple[dict[str, Outcome], Tensor]:
        statistics = _Statistics(self.network)
        outcomes = self.forward(inputs)
        self.backward(outcomes)
        skipped = ~are_finite(parameter.grad for parameter in self.network.parameters())
        statistics.restore(skipped)
        return {task: replace(outcome, loss=outcome.loss.detach()) for task, outcome in outcomes.items()}, skipped

    def forward(self, inputs: Mapping[str, Inputs]) -> dict[str, Outcome]:
        """Return loss and accuracy of each task."""
        device = next(iter(inputs.values())).crops.device
        # a CUDA graph must not depend on casts that were cached before it was captured
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
            outcomes: dict[str, Outcome] = self.network(inputs)
        return outcomes

    def backward(self, outcomes: Mapping[str, Outcome]) -> None:
        """Compute the gradients of the weighted sum of the losses; all are NaN if it is not finite.

        An infinite loss can have finite gradients. As NaN, they tell the other processes of it too, which receive the
        mean gradients of all.
        """
        losses = [self.loss_weights[task] * outcome.loss for task, outcome in outcomes.items()]
        total = torch.stack(losses).sum()
        total.backward(total.detach() * 0 + 1)  # type: ignore[no-untyped-call]


@dataclass
class GraphedStep(Step):
    """The same on a GPU as a captured CUDA graph: launching its hundreds of kernels one by one takes too long.

    There is a graph for each set of tasks and input shapes; inputs are copied into the tensors of its capture.
    """

    def __post_init__(self) -> None:
        self._graphs: dict[object, _CapturedStep] = {}
        self._pool = torch.cuda.graph_pool_handle()  # only one graph runs at a time, so all share their memory
        self._parameters = list(self.network.parameters())

    def __call__(self, inputs: Mapping[str, Inputs], iteration: int) -> tuple[dict[str, Outcome], Tensor]:
        """Learn from a batch of each task; the first batch of its shapes is captured."""
        tensors = {task: batch.tensors() for task, batch in inputs.items()}
        shapes = tuple((task, name, tensor.shape) for task, named in tensors.items() for name, tensor in named.items())
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(tensors)
        captured = self._graphs[shapes]
        captured.replay(tensors)
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            parameter.grad = gradient  # each graph has gradient tensors of its own
        self.optimisers.step(iteration, captured.skipped)
        return captured.outcomes, captured.skipped

    def _capture(self, tensors: "_Tensors") -> "_CapturedStep":
        static = {
            task: {name: torch.clone(tensor) for name, tensor in named.items()} for task, named in tensors.items()
        }

        def run() -> tuple[dict[str, Outcome], Tensor]:
            self.optimisers.zero_grad()
            return self._gradients({task: Inputs.of(named) for task, named in static.items()})

        self._warm_up(run)
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads use the GPU meanwhile to prepare batches, which must not be captured
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outcomes, skipped = run()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"the training step cannot be captured as a CUDA graph ({reason}): a network that synchronises with "
                "the GPU in its forward pass needs optim.precision fp32"
            ) from error
        return _CapturedStep(graph, static, [parameter.grad for parameter in self._parameters], outcomes, skipped)

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
    skipped: Tensor

    def replay(self, tensors: _Tensors) -> None:
        for task, named in tensors.items():
            for name, tensor in named.items():
                self.inputs[task][name].copy_(tensor)
        self.graph.replay()


def are_finite(gradients: Iterable[Tensor | None]) -> Tensor:
    """Return whether the norm of all gradients that there are is finite, as a bool on their device.

    Numbers beyond 1e19, whose squares overflow, count as infinite: the largest number itself would take a CPU 30 times
    as long to find.
    """
    return nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None]).isfinite()


class _Statistics:
    """The buffers of a network before a step: the running statistics of its batch normalisations."""

    def __init__(self, network: nn.Module) -> None:
        self._groups: dict[torch.dtype, list[Tensor]] = {}
        for buffer in network.buffers():
            self._groups.setdefault(buffer.dtype, []).append(buffer)
        # as one tensor of each type: on a GPU every small operation takes its time
        self._before = {dtype: _joined(buffers) for dtype, buffers in self._groups.items()}

    def restore(self, skipped: Tensor) -> None:
        """Set the buffers back if the step was skipped."""
        for dtype, buffers in self._groups.items():
            values = torch.where(skipped, self._before[dtype], _joined(buffers))
            parts = values.split([buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(buffer) for part, buffer in zip(parts, buffers, strict=True)])


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])
