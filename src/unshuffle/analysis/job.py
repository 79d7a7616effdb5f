"""One job of an ablation: train what is not trained, evaluate what is not evaluated.

`python -m unshuffle.analysis.job OUT ARM SEED` is how launchers start one in a process of its own.
"""

import gc
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path

import torch
from rich.console import Console

from unshuffle.accelerator import settings_restored
from unshuffle.analysis.plan import Job, Plan
from unshuffle.errors import UserError
from unshuffle.files import locked
from unshuffle.pretraining import run_pretraining
from unshuffle.stopping import Stopped, stopping_at_once

LOG_WIDTH = 160


def attempt(job: Job) -> str | None:
    """Do a job, all it prints into its log; gives a sentence if it fails. A wish to stop goes through."""
    with job.log.open("a", encoding="utf-8") as file:
        console = Console(file=file, width=LOG_WIDTH)
        try:
            with locked(job.log.with_suffix(".lock")):  # a job of an earlier command may still be stopping
                do(job, console)
        except Exception as error:
            sentence = _sentence(error, console)
            console.print(sentence, highlight=False, soft_wrap=True, markup=False)
            return sentence
    return None


def do(job: Job, console: Console) -> None:
    """Do what is left of a job; an evaluation that fails does not keep the others from being made."""
    if not job.is_trained:
        _train(job, console)
    problems = []
    for name in list(job.missing_evaluations()):
        try:
            _evaluate(job, name, console)
        except Exception as error:
            problems.append(f"evaluation {name}: {_sentence(error, console)}")
        finally:
            _free_memory()
    if problems:
        raise UserError("; ".join(problems))


def _sentence(error: Exception, console: Console) -> str:
    """An error in one line; where the user cannot put it right, all of it goes into the log."""
    if isinstance(error, UserError | OSError):
        return str(error)
    console.print(traceback.format_exc(), highlight=False, soft_wrap=True, markup=False)
    return " ".join(f"{type(error).__name__}: {error}".split())


def _train(job: Job, console: Console) -> None:
    begun = job.run.config_file.exists()
    if not begun and job.folder.exists():
        shutil.rmtree(job.folder)  # killed before there was anything to go on with
    try:
        with settings_restored():
            run_pretraining(job.config, resume=begun, console=console)
    finally:
        _free_memory()


def _evaluate(job: Job, name: str, console: Console) -> None:
    evaluation = job.evaluation(name)
    assert evaluation.out is not None
    result = evaluation.run(console)
    console.print(f"{result.protocol}: {result.statement}", highlight=False, soft_wrap=True, markup=False)
    job.keep(name, evaluation, result)
    shutil.rmtree(evaluation.out, ignore_errors=True)  # what a broken-off one would have gone on from


def _free_memory() -> None:
    """The next in this process may need all of the GPU."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _stop_with_parent() -> None:
    """Stop, with a checkpoint, when whoever started this process is no more: its end of our input is then closed."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Do one job, as a process."""
    out, arm, seed = sys.argv[1:]
    _stop_with_parent()
    try:
        with stopping_at_once():
            return 0 if attempt(Job(Plan.read(Path(out)), arm, int(seed))) is None else 1
    except Stopped as stop:
        return 128 + stop.signum


if __name__ == "__main__":
    sys.exit(main())
