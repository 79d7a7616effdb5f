"""The training loop: batches of every task, one step of the network, and validations in between."""

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unshuffle.accelerator import choose_device, choose_precision, has_kernels, prefer_speed, wait_for
from unshuffle.config import Config, merge_sections
from unshuffle.console import say
from unshuffle.data.batches import Batch, BatchStream, Prefetcher, WaitingStopped, on_device
from unshuffle.data.squares import RankSlice, Squares, make_resident
from unshuffle.errors import UserError
from unshuffle.models import Backbone, build_backbone
from unshuffle.models.batch_norm import check_synchronised, synchronise
from unshuffle.models.registry import fitting_crop_size
from unshuffle.models.weights import load_into
from unshuffle.policy.rollouts import run_rollouts
from unshuffle.randomness import seed_everything, stream_seed, torch_generator
from unshuffle.runs.checkpoints import checkpoint_iterations
from unshuffle.runs.run import Run
from unshuffle.stopping import Stopped, StopRequest, stop_requests
from unshuffle.tasks import PermutationSets, build_tasks
from unshuffle.tasks.base import Inputs, Network, Outcome, Task, Validation
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.prepare import Data
from unshuffle.training import distributed
from unshuffle.training.checkpoint import random_state, restore_random_state, save_checkpoint
from unshuffle.training.display import Display, TaskStatus
from unshuffle.training.distributed import together
from unshuffle.training.log import RunLog
from unshuffle.training.optim import Optimisers
from unshuffle.training.skipped import SkippedSteps
from unshuffle.training.step import GraphedStep, Step
from unshuffle.wording import describe_concern, listed, skipped_sentence

Monitor = Callable[[Backbone], dict[str, float]]
VALIDATION_CHUNK = 100  # samples that pass the backbone together


@dataclass
class Tally:
    """Sums between two log lines, kept on the device so that no step waits for them."""

    losses: dict[str, Tensor] = field(default_factory=dict)
    accuracies: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, Tensor] = field(default_factory=dict)
    """Steps of each task that were not skipped: the sums are those of these."""
    skipped: dict[int, Tensor] = field(default_factory=dict)
    """Whether the step of an iteration was skipped."""
    samples: int = 0
    crops: int = 0
    begin: float = field(default_factory=time.perf_counter)
    waited_before: float = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of what is not training."""
        begin = time.perf_counter()
        yield
        self.begin += time.perf_counter() - begin

    def add(self, task: str, outcome: Outcome, skipped: Tensor) -> None:
        """Count one step of a task, unless it was skipped."""
        zero = torch.zeros_like(outcome.loss)
        self.losses[task] = self.losses.get(task, zero) + torch.where(skipped, zero, outcome.loss)
        self.accuracies[task] = self.accuracies.get(task, zero) + torch.where(skipped, zero, outcome.accuracy)
        self.steps[task] = self.steps.get(task, zero.int()) + ~skipped


class Trainer:
    """Trains a backbone on all tasks of a config."""

    def __init__(
        self,
        config: Config,
        data: Data,
        tasks: Mapping[str, Task],
        backbone: Backbone,
        device: torch.device,
        monitor: Monitor | None = None,
    ) -> None:
        self.config, self.data, self.device, self.monitor = config, data, device, monitor
        self.tasks = tasks
        self.network = Network(backbone, tasks).to(device)
        self.precision = choose_precision(config.optim.precision, device)
        choose_layout(self.network, self.precision, device)
        if self.precision == "bf16" and has_kernels(device):
            prefer_speed()
            if config.model.compile:
                self.network.compile_backbone()
        self.optimisers = Optimisers(self.network, config)
        self.part = RankSlice(distributed.rank(), distributed.size())
        self.streams = self._build_streams(data)
        parts = (data.training, data.validation, data.test)
        self.data_digests = {name: [part[name].digest() for part in parts if name in part] for name in tasks}
        self.validation_pixels = {name: samples.centres() for name, samples in data.validation.items()}
        self._own_validation = {
            name: pixels[self.part.rows(len(pixels))].to(device) for name, pixels in self.validation_pixels.items()
        }
        self._own_test = {  # not on the device: there may be many
            name: replace(samples, items=samples.items[self.part.rows(len(samples))]).centres()
            for name, samples in data.test.items()
        }
        self.iteration = 0
        self.first, self.last = 0, config.optim.iterations
        """Where `train` begins, with a validation of the network as it is, and where it ends."""
        self.keeps_samplers = False
        """Whether the samplers are those of a checkpoint at `first`: then they do not learn from that validation."""
        self.owes_rollouts = False
        """Whether `train` begins with the rollouts that were left out here when this was a run's end."""
        self.skipped_steps = SkippedSteps()
        self._concerned: set[str] = set()
        self._request = StopRequest()

    def _build_streams(self, data: Data) -> dict[str, BatchStream]:
        sources = {id(samples.source): samples.source for samples in data.training.values()}
        fraction = self.config.data.gpu_memory_fraction / len(sources)
        resident = {key: make_resident(source, self.device, fraction) for key, source in sources.items()}
        return {
            name: BatchStream(
                samples,
                self.tasks[name].batch_size,
                self.config.seed,
                name,
                resident[id(samples.source)],
                gpu=self.device.type == "cuda",
            )
            for name, samples in data.training.items()
        }

    @property
    def ordering_tasks(self) -> dict[str, OrderingTask]:
        """The tasks with a permutation set and a sampler."""
        return {name: task for name, task in self.tasks.items() if isinstance(task, OrderingTask)}

    @property
    def permutations(self) -> dict[str, Tensor]:
        """Ψ of each ordering task."""
        return {name: task.permutations for name, task in self.ordering_tasks.items()}

    @cached_property
    def learn(self) -> Step:
        """The training step, built with the first use, by all processes at the same time."""
        weights = {name: task.settings.loss_weight for name, task in self.tasks.items()}
        network = distributed.parallel(self.network, some_unused=len(self.config.stages) > 1)
        capture = self.part.world_size == 1 and self.precision == "bf16" and has_kernels(self.device)
        return (GraphedStep if capture else Step)(network, weights, self.optimisers, self.precision)

    def train(self, run: Run, log: RunLog, display: Display) -> None:
        """Train from the current iteration to the last, saving into the run folder."""
        batches = Prefetcher(self.load, self.iteration, self.last, self.config.data.workers, self._stops)
        # with several processes, the system and torchrun may each send the signal
        patient = self.part.world_size > 1
        notice = "stopping after the current step or validation, with a checkpoint"
        again = "" if patient else "; Ctrl-C again stops at once, without one"
        requests = stop_requests(patient=patient, announce=lambda: display.announce(notice + again))
        with display, requests as self._request, closing(on_device(batches, self.device)) as upcoming:
            if self.iteration == self.first:
                self._monitor(log, display)
                self._validate(log, display, learns=not self.keeps_samplers)
                display.update(self.iteration)
            elif self.owes_rollouts and self._episode_ends:
                self._run_rollouts(log)
            tally, display.skipped_steps = Tally(), self.skipped_steps.total
            while self.iteration < self.last:
                try:
                    with together():
                        batch = next(upcoming)
                except WaitingStopped:
                    self.skipped_steps.count(tally.skipped)
                    self.save(run)
                    raise self._stopped(run.folder) from None
                self.step(batch, tally)
                stop = distributed.largest(self._request.signum or 0)
                if self._due(self.config.log.train_every):
                    tally = self._log_training(run, log, display, tally, batches.seconds_waited)
                self._between_steps(run, log, display, tally, stopping=stop > 0)
                display.update(self.iteration)  # with the validation of this iteration
                if stop:
                    raise self._stopped(run.folder, stop)

    def _stops(self) -> bool:
        """Return whether to stop without waiting for data; several processes only stop after the same step."""
        return self.part.world_size == 1 and self._request.signum is not None

    def _stopped(self, folder: Path, signum: int | None = None, saved: str = "a checkpoint is saved") -> Stopped:
        resume = f"{distributed.launcher()} pretrain --out {shlex.quote(str(folder))} --resume"
        text = f"stopped at iteration {self.iteration}; {saved}. Continue with: {resume}"
        return Stopped(signum or self._request.signum or 0, text, self.iteration)

    def _between_steps(self, run: Run, log: RunLog, display: Display, tally: Tally, *, stopping: bool) -> None:
        validates = self._episode_ends or self._episode_begins or self.iteration == self.last
        monitors = self._due(self.config.log.monitor_every)
        saves = self._due(self.config.log.checkpoint_every)
        if not (validates or monitors or saves or stopping):
            return
        wait_for(self.device)  # pending steps count as training time
        with tally.paused():
            # an uninterrupted run would not average them here, which rounds: a resumed one continues with its own
            own_buffers = [] if validates or monitors or saves else distributed.gather(self._buffers())
            distributed.average_buffers(self.network)
            if validates:
                self._validate(log, display)
            if monitors:
                self._monitor(log, display)
            if saves or stopping:
                self.skipped_steps.count(tally.skipped)
                self._check_skipped(run)
                # amid skipped steps the weights may be useless, and their checkpoint would replace a good one
                if stopping or self.iteration == self.last or not self.skipped_steps.in_a_row:
                    self.save(run, own_buffers)

    def _buffers(self) -> dict[str, Tensor]:
        """Return copies of this process's buffers, BN's running statistics among them, on the CPU."""
        return {name: buffer.to("cpu", copy=True) for name, buffer in self.network.named_buffers()}

    def step(self, batch: Batch, tally: Tally) -> None:
        """Train on this process's slice of a batch of each active task."""
        inputs = self.inputs(batch)
        for task_inputs in inputs.values():
            samples, crops = task_inputs.crops.shape[:2]
            tally.samples += samples * self.part.world_size
            tally.crops += samples * crops * self.part.world_size
        if self.part.world_size > 1:  # other dropout masks on every process, the same ones in a resumed run
            stream = ("dropout", self.part.rank, self.iteration)
            seed_everything(int(stream_seed(self.config.seed, *stream).generate_state(1)[0]))
        outcomes, skipped = self.learn(inputs, self.iteration)
        tally.skipped[self.iteration] = skipped.clone()  # a captured step writes into the same tensor again
        for name, outcome in outcomes.items():
            tally.add(name, outcome, skipped)
            if name in self.ordering_tasks:
                self.ordering_tasks[name].sampled.add(**outcome.sampled, skipped=skipped)
        self.iteration += 1

    def inputs(self, batch: Batch) -> dict[str, Inputs]:
        """Return crops and targets of a batch of each task."""
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        inputs = {}
        for name, squares in batch.items():
            task = self.tasks[name]
            generator = torch_generator(self.device, self.config.seed, "step", name, self.iteration)
            crops = task.crops(squares.to(self.device), generator, self.part, dtype)
            inputs[name] = Inputs(crops, task.targets(len(squares) * self.part.world_size, generator, self.part))
        return inputs

    def validation_crops(self, name: str) -> Iterator[Tensor]:
        """Yield centre crops of this process's slice of X_val, in chunks."""
        return self._centre_crops(name, self._own_validation[name])

    def _centre_crops(self, name: str, pixels: Tensor) -> Iterator[Tensor]:
        chunks = pixels.split(VALIDATION_CHUNK)
        return (self.tasks[name].crops(Squares.of(chunk.to(self.device))) for chunk in chunks)

    def validate(self, name: str) -> Any:
        """Validate a task on X_val."""
        own = self.tasks[name].validate(self.network, self.validation_crops(name))
        return self.tasks[name].merge(distributed.gather(own))

    def test(self, name: str) -> Validation:
        """Measure a task on its pretext test set; no sampler may learn from the result."""
        task, pixels = self.tasks[name], self._own_test[name]
        own = task.validate(self.network, self._centre_crops(name, pixels)) if len(pixels) else None
        return task.merge([part for part in distributed.gather(own) if part is not None])

    def active_tasks(self, iteration: int) -> tuple[str, ...]:
        """Return the tasks that an iteration trains: those of its stage."""
        return self.config.stages[self.config.stage_at(iteration)]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on."""
        return {
            "iteration": self.iteration,
            "network": self.network.state_dict(),
            "optimisers": self.optimisers.state_dict(),
            "tasks": {name: task.state_dict() for name, task in self.tasks.items()},
            "skipped": self.skipped_steps.state_dict(),
            "random": random_state(),
            "data": self.data_digests,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        if state["data"] != self.data_digests:
            raise UserError("the data has changed since the run began: a resumed run needs the same files")
        self.iteration = state["iteration"]
        self.network.load_state_dict(state["network"])
        self.optimisers.load_state_dict(state["optimisers"])
        if len(state.get("buffers", ())) == self.part.world_size:
            self.network.load_state_dict(state["buffers"][self.part.rank], strict=False)
        for name, task in self.tasks.items():
            task.load_state_dict(state["tasks"][name])
        self.skipped_steps.load_state_dict(state.get("skipped", {}))  # older versions have none
        restore_random_state(state["random"])

    def save(self, run: Run, buffers: Sequence[dict[str, Tensor]] = ()) -> None:
        """Write a checkpoint, unless the weights are not finite; with the buffers of each process if they differ."""
        for task in self.ordering_tasks.values():
            task.sampled.reduce(distributed.total)
        with together():
            if not all(bool(value.isfinite().all()) for value in self.network.state_dict().values()):
                raise UserError(self._overflow())
            if distributed.is_main():
                state = self.state_dict() | ({"buffers": list(buffers)} if len(buffers) > 1 else {})
                save_checkpoint(run.checkpoints, self.iteration, state, self.config.log.keep_checkpoints)

    def statuses(self) -> dict[str, TaskStatus]:
        """Return empty figures for the display."""
        tasks = self.tasks.items()
        return {name: TaskStatus(1 - task.chance, isinstance(task, OrderingTask)) for name, task in tasks}

    def load(self, iteration: int) -> Batch:
        """Read the batch of an iteration for each of its tasks; safe to call from any thread."""
        return {name: self.streams[name].batch(iteration, self.part) for name in self.active_tasks(iteration)}

    @property
    def _episode_ends(self) -> bool:
        return self.iteration > 0 and self.iteration % self.config.policy.interval == 0

    @property
    def _episode_begins(self) -> bool:
        """An episode is the last K iterations of an interval."""
        interval, batches = self.config.policy.interval, self.config.policy.batches
        return self.iteration % interval == (interval - batches) % interval

    def _due(self, every: int) -> bool:
        return self.iteration % every == 0 or self.iteration == self.last

    def _log_training(self, run: Run, log: RunLog, display: Display, tally: Tally, waited: float) -> Tally:
        loss, accuracy = self._averages(tally.losses, tally), self._averages(tally.accuracies, tally)
        seconds = time.perf_counter() - tally.begin  # after the averages, which wait for the GPU
        self.skipped_steps.count(tally.skipped)
        skipped = self._log_skipped(log, display)
        display.samples_per_second, display.crops_per_second = tally.samples / seconds, tally.crops / seconds
        display.waiting = (waited - tally.waited_before) / seconds
        for name in loss:
            display.tasks[name].loss, display.tasks[name].accuracy = loss[name], accuracy[name]
        with together():
            log.write(
                "train",
                self.iteration,
                loss=loss,
                accuracy=accuracy,
                lr=self.optimisers.learning_rates(self.iteration - 1),
                samples_per_second=display.samples_per_second,
                crops_per_second=display.crops_per_second,
                waiting_for_data=display.waiting,
                skipped=skipped,
            )
        self._check_skipped(run)
        return Tally(waited_before=waited)

    def _averages(self, sums: Mapping[str, Tensor], tally: Tally) -> dict[str, float]:
        """Return means over the steps of a tally that were not skipped, and over all processes."""
        own = {name: float(sums[name]) / int(steps) for name, steps in tally.steps.items() if steps}
        return dict(zip(own, distributed.means(list(own.values())), strict=True))

    def _log_skipped(self, log: RunLog, display: Display) -> int:
        """Log the steps that were skipped since the last line, with the files of their batches; return their number."""
        skipped, self.skipped_steps.unlogged = self.skipped_steps.unlogged, []
        for iteration in skipped:
            files = self.files(iteration)
            with together():
                log.write("skipped", self.iteration, step=iteration + 1, files=files)
        if skipped and not display.skipped_steps:
            say(display.console, skipped_sentence(self.skipped_steps.total, self.iteration))
        display.skipped_steps = self.skipped_steps.total
        return len(skipped)

    def files(self, iteration: int) -> dict[str, list[str]]:
        """Return the names of the samples in the batch of an iteration, of all processes, for each of its tasks."""
        own = {name: self.streams[name].names(iteration, self.part) for name in self.active_tasks(iteration)}
        slices = distributed.gather(own)
        return {name: [file for files in slices for file in files[name]] for name in own}

    def _check_skipped(self, run: Run) -> None:
        """Raise a UserError if too many steps were skipped; all processes have the same counts."""
        excess = self.skipped_steps.excess(self.config.optim.max_skipped_steps, self.iteration)
        if excess is None:
            self.skipped_steps.longest = self.skipped_steps.in_a_row
            return
        last = self.skipped_steps.last
        files = "; ".join(f"{listed(files)} ({name})" for name, files in self.files(last).items())
        saved = checkpoint_iterations(run.checkpoints)
        checkpoint = f"the checkpoint of iteration {saved[-1]} is kept" if saved else "there is no checkpoint yet"
        with together():
            raise UserError(
                f"{excess} skipped because loss or gradients were not finite, the last one step {last + 1} "
                f"with {files}; {checkpoint}: lower the learning rates (optim.backbone.lr, TASK.optimiser.lr) or raise "
                "optim.warmup, and start again; if it is always the same files, remove them"
            )

    def _overflow(self) -> str:
        return (
            f"the network's weights or outputs overflowed before iteration {self.iteration}: lower the learning rates "
            "(optim.backbone.lr, TASK.optimiser.lr) or raise optim.warmup, and start again"
        )

    def _validate(self, log: RunLog, display: Display, *, learns: bool = True) -> None:
        begin = time.perf_counter()
        for name, task in self.tasks.items():
            validation = self.validate(name)
            if not validation.is_finite:
                raise UserError(self._overflow())
            with together():
                log.write_validation(self.iteration, name, validation)
            if isinstance(task, OrderingTask):
                self._observe(task, validation, log, display, learns=learns)
            display.tasks[name].error = validation.error
        ran_rollouts = not learns and self.iteration != self.config.optim.iterations  # a run's end has none
        if self._episode_ends and self.iteration < self.last and not ran_rollouts:
            self._run_rollouts(log)
        for name, task in self.ordering_tasks.items():
            display.tasks[name].preference = task.sampler.preference
        with together():
            log.write("cost", self.iteration, duration=time.perf_counter() - begin)

    def _observe(self, task: OrderingTask, validation: Any, log: RunLog, display: Display, *, learns: bool) -> None:
        """Let the sampler of a task learn from a validation, or only record what it samples."""
        task.sampled.reduce(distributed.total)
        ends, begins = self._episode_ends, self._episode_begins
        observation = task.observe(validation, self.iteration, ends=ends, begins=begins) if learns else task.resume()
        self._synchronise(task)
        with together():
            log.write_observation(self.iteration, task.name, validation, observation)
            self._warn(log, display, task.name, observation.concerns)

    def _run_rollouts(self, log: RunLog) -> None:
        """Run the rollouts of the tasks that are trained now and whose samplers learn from them."""
        active = self.active_tasks(self.iteration)
        samplers = {name: task.sampler for name, task in self.ordering_tasks.items() if name in active}
        iteration = self.iteration
        try:
            entries = run_rollouts(self, samplers, self.config.policy.rollout_iterations)
        except WaitingStopped:  # with the weights of a rollout, which must not be saved
            self.iteration = iteration
            raise self._stopped(log.run.folder, saved="the last checkpoint is kept") from None
        for name, entry in entries.items():
            self._synchronise(self.ordering_tasks[name])
            with together():
                log.write("rollouts", self.iteration, task=name, **entry)

    def train_iterations(self, count: int) -> None:
        """Train on the next batches without logging, validating or saving."""
        tally = Tally()
        last = self.iteration + count
        batches = Prefetcher(self.load, self.iteration, last, self.config.data.workers, self._stops)
        with closing(on_device(batches, self.device)) as upcoming:
            for _ in range(count):
                with together():
                    batch = next(upcoming)
                self.step(batch, tally)
        distributed.average_buffers(self.network)

    def _synchronise(self, task: OrderingTask) -> None:
        """Give all processes the sampler of the main process."""
        if self.part.world_size > 1:
            task.sampler.load_state_dict(distributed.broadcast(task.sampler.state_dict()))

    def _warn(self, log: RunLog, display: Display, name: str, concerns: list[dict[str, Any]]) -> None:
        """Log every concern of the sampler; print them when they begin."""
        for concern in concerns:
            log.write("warning", self.iteration, task=name, **concern)
        if concerns and name not in self._concerned:
            sentences = "; ".join(describe_concern(concern) for concern in concerns)
            say(display.console, f"{name}, iteration {self.iteration}: {sentences}")
        self._concerned = self._concerned | {name} if concerns else self._concerned - {name}

    def _monitor(self, log: RunLog, display: Display) -> None:
        """Measure what nothing in the training depends on: errors on the pretext test sets, and the features."""
        for name in self.data.test:
            test = self.test(name)
            if not test.is_finite:
                raise UserError(self._overflow())
            with together():
                log.write_test(self.iteration, name, test)
        with together():
            if self.monitor is None:
                return
            figures = self.monitor(self.network.backbone)
            if not all(map(math.isfinite, figures.values())):
                raise UserError(self._overflow())
            log.write("monitor", self.iteration, **figures)
            display.monitor = figures


def build_trainer(
    config: Config, data: Data, permutations: PermutationSets | None = None, monitor: Monitor | None = None
) -> Trainer:
    """Return a trainer for a config and its data; `permutations` are the sets to use instead of choosing new ones."""
    device = choose_device(config.device)
    seed_everything(config.seed)
    tasks = build_tasks(config, data.training, device, permutations)
    return Trainer(config, data, tasks, initial_backbone(config), device, monitor)


def initial_backbone(config: Config) -> Backbone:
    """Return a new backbone, initialised from `init` if it is given."""
    backbone = build_backbone(config.model.backbone)
    if config.init is not None:
        load_into(backbone, config.init.expanduser())
    if config.model.sync_bn:
        synchronise(backbone)
        check_synchronised(backbone)
    return backbone


def choose_layout(network: nn.Module, precision: str, device: torch.device) -> None:
    """Give convolutions the layout in which they are fastest, where that was measured: channels-last."""
    fast_on_cpu = device.type == "cpu" and torch.backends.mkldnn.is_available()
    if fast_on_cpu or (precision == "bf16" and has_kernels(device)):
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)


def fit_crop_sizes(config: Config) -> tuple[Config, list[str]]:
    """Return the config with crop sizes that suit its backbone, and a sentence for each that is not as it was."""
    family, _, member = config.model.backbone.partition(":")
    if family != "timm" or not member:
        return config, []
    backbone, sentences = build_backbone(config.model.backbone), []
    for name in config.task_names:
        asked = config.section(name).crop_size
        fitting = fitting_crop_size(backbone, asked)
        if fitting != asked:
            config = merge_sections(config, {name: {"crop_size": fitting}})
            sentences.append(f"{name}.crop_size is {fitting}, as {asked} does not suit {config.model.backbone}")
    return config, sentences
