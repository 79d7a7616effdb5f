"""The training loop: batches, shuffling, one step of the network, and now and then a validation."""

import copy
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unshuffle.accelerator import choose_precision, has_kernels, prefer_speed, wait_for
from unshuffle.config import Config
from unshuffle.data import shuffle
from unshuffle.data.batches import Batch, BatchStream, Prefetcher, ahead
from unshuffle.data.prepare import Data
from unshuffle.data.share import WHOLE
from unshuffle.data.squares import Squares, make_resident
from unshuffle.errors import UserError
from unshuffle.models import Backbone
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.policy.samplers import Observation, Proposal, Sampler
from unshuffle.policy.state import Validation, merge, validate
from unshuffle.randomness import seed_everything, stream_seed, torch_generator
from unshuffle.runs.run import Run
from unshuffle.stopping import Stopped, stop_requests
from unshuffle.training import distributed
from unshuffle.training.checkpoint import random_state, restore_random_state, save_checkpoint
from unshuffle.training.display import Display, TaskStatus
from unshuffle.training.distributed import together
from unshuffle.training.log import RunLog
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import Outcome, Step, build_step

Monitor = Callable[[Backbone], dict[str, float]]
VALIDATION_CHUNK = 100  # samples that pass the backbone together


@dataclass
class Tally:
    """Sums between two log lines, kept on the device so that no step waits for them."""

    losses: dict[str, Tensor] = field(default_factory=dict)
    hits: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    crops: int = 0
    begin: float = field(default_factory=time.perf_counter)
    waited_before: float = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of what is not training."""
        begin = time.perf_counter()
        yield
        self.begin += time.perf_counter() - begin

    def add(self, task: str, outcome: Outcome) -> None:
        """Count one step of a task."""
        self.losses[task] = self.losses.get(task, torch.zeros_like(outcome.loss)) + outcome.loss
        self.hits[task] = self.hits.get(task, torch.zeros_like(outcome.accuracy)) + outcome.accuracy
        self.steps[task] = self.steps.get(task, 0) + 1


class Trainer:
    """Trains an ordering network on the permutations that the samplers propose."""

    def __init__(
        self,
        config: Config,
        data: Data,
        network: OrderingNetwork,
        permutations: dict[str, Tensor],
        samplers: dict[str, Sampler],
        device: torch.device,
        monitor: Monitor | None = None,
    ) -> None:
        self.config, self.data, self.device, self.monitor = config, data, device, monitor
        self.network = network.to(device)
        self.permutations = {task: rows.to(device) for task, rows in permutations.items()}
        self.samplers = samplers
        self.precision = choose_precision(config.optim.precision, device)
        if self.precision == "bf16" and has_kernels(device):
            prefer_speed()
        self.optimisers = Optimisers(network, config.optim)
        self.share = distributed.share()
        self.streams = self._build_streams(data)
        self.data_digests = {
            task: [data.training[task].digest(), data.validation[task].digest()] for task in data.training
        }
        self.validation_pixels = {task: samples.centres() for task, samples in data.validation.items()}
        self._own_validation = {
            task: pixels[self.share.rows(len(pixels))].to(device) for task, pixels in self.validation_pixels.items()
        }
        self.iteration = 0
        self.first, self.last = 0, config.optim.iterations
        """Where `train` begins, by looking at the network as it is, and where it ends; a branch has its own."""
        self._warned: dict[str, bool] = {}

    def _build_streams(self, data: Data) -> dict[str, BatchStream]:
        sources = {id(samples.source): samples.source for samples in data.training.values()}
        share = self.config.data.gpu_share / len(sources)
        resident = {key: make_resident(source, self.device, share) for key, source in sources.items()}
        return {
            task: BatchStream(
                samples,
                self.config.optim.batch_size,
                self.config.seed,
                task,
                resident[id(samples.source)],
                gpu=self.device.type == "cuda",
            )
            for task, samples in data.training.items()
        }

    @cached_property
    def learn(self) -> Step:
        """Made for the first step: what happens before it may fail on one process alone, and this is done by all."""
        if self.share.of == 1:
            return build_step(self.network, self.permutations, self.optimisers, self.precision, self.device)
        network = distributed.parallel(self.network, some_unused=self.config.tasks == "S&T")
        return Step(network, self.permutations, self.optimisers, self.precision)

    def train(self, run: Run, log: RunLog, display: Display) -> None:
        """Go on from the current iteration to the last, saving into the run folder."""
        batches = Prefetcher(self.load, self.iteration, self.last, self.config.data.workers)
        # several processes may be sent a signal twice for one wish, by the system and by torchrun
        wishes = stop_requests(patient=self.share.of > 1)
        with display, wishes as request, closing(ahead(batches, self.device)) as coming:
            if self.iteration == self.first:
                self._monitor(log, display)
                self._validate(log, display)
                display.update(self.iteration)
            tally = Tally()
            while self.iteration < self.last:
                with together():
                    batch = next(coming)
                self.step(batch, tally)
                stop = distributed.largest(request.signum or 0)
                if self._due(self.config.log.train_every):
                    tally = self._log_training(log, display, tally, batches.seconds_waited)
                self._between_steps(run, log, display, tally, stopping=stop > 0)
                if self._due(self.config.log.train_every):
                    with tally.paused():
                        display.update(self.iteration)  # what was found between the steps belongs to this iteration
                if stop:
                    raise self._stopped(stop, run.folder)

    def _stopped(self, signum: int, folder: Path) -> Stopped:
        go_on = f"Go on with: {distributed.launcher()} pretrain --out {shlex.quote(str(folder))} --resume"
        text = f"stopped at iteration {self.iteration}; a checkpoint is saved. {go_on}"
        return Stopped(signum, text, self.iteration)

    def _between_steps(self, run: Run, log: RunLog, display: Display, tally: Tally, *, stopping: bool) -> None:
        validates = self._episode_ends or self._episode_begins or self.iteration == self.last
        monitors = self._due(self.config.log.monitor_every)
        saves = self._due(self.config.log.checkpoint_every) or stopping
        if not validates:
            self._rate_may_drop()
        if not (validates or monitors or saves):
            return
        wait_for(self.device)  # the steps that a GPU has still to do belong to the training
        with tally.paused():
            distributed.average_buffers(self.network)
            if validates:
                self._validate(log, display)
            if monitors:
                self._monitor(log, display)
            if saves:
                self.save(run)

    def step(self, batch: Batch, tally: Tally) -> None:
        """One step on this process's share of a batch of each active task; the losses are summed."""
        crops, proposals = self.shuffle(batch)
        for some in crops.values():
            tally.samples += len(some) * self.share.of
            tally.crops += len(some) * self.share.of * some.shape[1]
        if self.share.of > 1:  # dropout: other masks on every process, and none that a resumed run would not have
            where = ("dropout", self.share.index, self.iteration)
            seed_everything(int(stream_seed(self.config.seed, *where).generate_state(1)[0]))
        for task, outcome in self.learn(crops, proposals, self.iteration).items():
            tally.add(task, outcome)
            if outcome.chosen is not None:
                self.samplers[task].count(*outcome.chosen)
        self.iteration += 1

    def shuffle(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Proposal]]:
        """The crops of a batch, and the permutations to put them into."""
        crops, proposals = {}, {}
        for task, some in batch.items():
            generator = torch_generator(self.device, self.config.seed, "step", task, self.iteration)
            crops[task] = self.crops(task, some.to(self.device), generator)
            proposals[task] = self._propose(task, len(some) * self.share.of, generator)
        return crops, proposals

    def _propose(self, task: str, samples: int, generator: torch.Generator) -> Proposal:
        """This process's share of the permutations of a whole batch."""
        whole = self.samplers[task].propose(samples, self.config.permutations.per_sample, generator)
        rows = self.share.rows(samples)
        choice = whole.choice and replace(whole.choice, noise=whole.choice.noise[rows])
        return replace(whole, permutations=whole.permutations[rows], choice=choice)

    def crops(self, task: str, squares: Squares, generator: torch.Generator | None = None) -> Tensor:
        """Squares on the device to (B, P, 3, S, S) crops; with a generator those of training."""
        config, share = self.config.shuffle, WHOLE if generator is None else self.share
        cuts = shuffle.CUTS[task](len(squares) * share.of, squares.side, config, self.device, generator).part(share)
        if not has_kernels(self.device):
            return shuffle.render(squares.pixels(), cuts, config.crop_size)
        from unshuffle.data import rendering  # needs Triton

        training_type = torch.bfloat16 if self.precision == "bf16" else torch.float32
        return rendering.render(squares, cuts, config.crop_size, training_type if generator else torch.float32)

    def validation_crops(self, task: str) -> Iterator[Tensor]:
        """This process's share of X_val in chunks, centre crops in their true colours."""
        chunks = self._own_validation[task].split(VALIDATION_CHUNK)
        return (self.crops(task, Squares.of(chunk)) for chunk in chunks)

    def validate(self, task: str) -> Validation:
        """Every permutation on every validation sample."""
        own = validate(self.network, task, self.validation_crops(task), self.permutations[task])
        return merge(distributed.gather(own))

    def active_tasks(self, iteration: int) -> list[str]:
        """The tasks that an iteration trains: all, or with S&T the spatial one first and then the temporal."""
        if self.config.tasks != "S&T":
            return list(self.streams)
        return ["spatial"] if iteration < self.config.optim.iterations // 2 else ["temporal"]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "iteration": self.iteration,
            "network": self.network.state_dict(),
            "optimisers": self.optimisers.state_dict(),
            "samplers": {task: sampler.state_dict() for task, sampler in self.samplers.items()},
            "random": random_state(),
            "data": self.data_digests,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where a checkpoint was written."""
        if state["data"] != self.data_digests:
            raise UserError("the data is not what the run began with: a resumed run needs the same files")
        self.iteration = state["iteration"]
        self.network.load_state_dict(state["network"])
        self.optimisers.load_state_dict(state["optimisers"])
        for task, sampler in self.samplers.items():
            sampler.load_state_dict(state["samplers"][task])
        restore_random_state(state["random"])

    def save(self, run: Run) -> None:
        """Write a checkpoint, unless there is nothing left worth saving."""
        for sampler in self.samplers.values():
            sampler.gather(distributed.total)
        with together():
            if not all(bool(value.isfinite().all()) for value in self.network.state_dict().values()):
                raise UserError(self._not_a_number())
            if distributed.is_main():
                save_checkpoint(run.checkpoints, self.iteration, self.state_dict(), self.config.log.keep_checkpoints)

    def statuses(self) -> dict[str, TaskStatus]:
        """Empty figures for the display."""
        return {
            task: TaskStatus(chance=1 / len(rows), preference=self.samplers[task].preference())
            for task, rows in self.permutations.items()
        }

    def load(self, iteration: int) -> Batch:
        """The batch of an iteration, for each of its tasks; any thread may make it."""
        return {task: self.streams[task].batch(iteration, self.share) for task in self.active_tasks(iteration)}

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

    def _log_training(self, log: RunLog, display: Display, tally: Tally, waited: float) -> Tally:
        loss, accuracy = self._averages(tally.losses, tally), self._averages(tally.hits, tally)
        seconds = time.perf_counter() - tally.begin  # after the averages, which wait for the GPU to be done
        if not np.isfinite(list(loss.values())).all():
            raise UserError(self._not_a_number())
        display.samples_per_second, display.crops_per_second = tally.samples / seconds, tally.crops / seconds
        display.waiting = (waited - tally.waited_before) / seconds
        for task in loss:
            display.tasks[task].loss, display.tasks[task].accuracy = loss[task], accuracy[task]
        with together():
            log.write(
                "train",
                self.iteration,
                loss=loss,
                accuracy=accuracy,
                samples_per_second=display.samples_per_second,
                crops_per_second=display.crops_per_second,
                waiting_for_data=display.waiting,
            )
        return Tally(waited_before=waited)

    def _averages(self, sums: Mapping[str, Tensor], tally: Tally) -> dict[str, float]:
        """Means over the steps of a tally and over all processes."""
        own = [float(total) / tally.steps[task] for task, total in sums.items()]
        return dict(zip(sums, distributed.means(own), strict=True))

    def _not_a_number(self) -> str:
        return (
            f"the network's numbers overflowed before iteration {self.iteration}: "
            "lower optim.*.lr or raise optim.warmup, and start again"
        )

    def _validate(self, log: RunLog, display: Display) -> None:
        begin = time.perf_counter()
        for task in self.permutations:
            validation = self.validate(task)
            if not np.isfinite(validation.state.numpy()).all():  # torch would wake its threads for this
                raise UserError(self._not_a_number())
            seen = self._observe(self.samplers[task], validation)
            with together():
                log.write_validation(self.iteration, task, validation, seen)
                self._warn(log, display, task, seen.warnings)
            display.tasks[task].error = validation.error
        self._rate_may_drop()
        if self._episode_ends and self.iteration < self.last:
            self._try_groups(log)
        for task, sampler in self.samplers.items():
            display.tasks[task].preference = sampler.preference()
        with together():
            log.write("cost", self.iteration, seconds=time.perf_counter() - begin)

    def _rate_may_drop(self) -> None:
        """Tell the samplers before the first step at a lower rate, and after the validation of the last at a higher."""
        if self.iteration in self.config.optim.milestones:
            for sampler in self.samplers.values():
                sampler.rate_dropped()

    def _try_groups(self, log: RunLog) -> None:
        """Let the samplers that want it see what becomes of the network when a group is preferred for a while."""
        # what a trial does not train it says nothing about
        wanted = {task: count for task in self.active_tasks(self.iteration) if (count := self.samplers[task].trials)}
        if not wanted:
            return
        before = copy.deepcopy(self.state_dict())
        errors: dict[str, list[Tensor]] = {task: [] for task in wanted}
        for group in range(max(wanted.values())):
            self._trial({task: min(group, count - 1) for task, count in wanted.items()})
            distributed.average_buffers(self.network)
            for task in wanted:
                errors[task].append(self.validate(task).sample_errors)
            self.load_state_dict(copy.deepcopy(before))  # the optimisers keep what they are given
        for task, count in wanted.items():
            entry = self.samplers[task].judge(torch.stack(errors[task][:count]))
            self._agree(self.samplers[task])
            with together():
                log.write("rollouts", self.iteration, task=task, iterations=self.config.policy.trial, **entry)

    def _trial(self, preferred: Mapping[str, int]) -> None:
        """Train on the next batches with some groups preferred."""
        for task, group in preferred.items():
            self.samplers[task].prefer(group)
        length, tally = self.config.policy.trial, Tally()
        batches = Prefetcher(self.load, self.iteration, self.iteration + length, self.config.data.workers)
        with closing(ahead(batches, self.device)) as coming:
            for _ in range(length):
                with together():
                    batch = next(coming)
                self.step(batch, tally)

    def _agree(self, sampler: Sampler) -> None:
        """What the main process's sampler has learned holds for all."""
        if self.share.of > 1:
            sampler.load_state_dict(distributed.broadcast(sampler.state_dict()))

    def _observe(self, sampler: Sampler, validation: Validation) -> Observation:
        """Let a sampler see a validation."""
        sampler.gather(distributed.total)
        seen = sampler.observe(validation, self.iteration, ends=self._episode_ends, begins=self._episode_begins)
        self._agree(sampler)
        return seen

    def _warn(self, log: RunLog, display: Display, task: str, warnings: list[str]) -> None:
        """Tell what the sampler warns of: all of it in the log, on the console when it begins."""
        for text in warnings:
            log.write("warning", self.iteration, task=task, text=text)
        if warnings and not self._warned.get(task):
            display.console.print(f"{task}, iteration {self.iteration}: {'; '.join(warnings)}", highlight=False)
        self._warned[task] = bool(warnings)

    def _monitor(self, log: RunLog, display: Display) -> None:
        with together():
            if self.monitor is None:
                return
            scores = self.monitor(self.network.backbone)
            log.write("monitor", self.iteration, **scores)
            display.top1 = scores["top1"]
