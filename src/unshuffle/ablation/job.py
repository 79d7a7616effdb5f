"""One job of an ablation: train the run and make its evaluations, as far as that is not done.

Launchers start it in a process of its own with `python -m unshuffle.ablation.job OUT ARM SEED`.
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

from unshuffle.ablation.plan import Job, Plan
from unshuffle.accelerator import settings_restored
from unshuffle.console import say
from unshuffle.errors import UserError
from unshuffle.files import locked
from unshuffle.pretraining import run_pretraining
from unshuffle.stopping import Stopped, stopping_at_once
from unshuffle.wording import os_error_sentence

LOG_WIDTH = 160


def run_job(job: Job) -> str | None:
    """Run a job with its output in its log; return a sentence if it fails. A signal to stop is passed on."""
    with job.log.open("a", encoding="utf-8") as file:
        console = Console(file=file, width=LOG_WIDTH)
        try:
            with locked(job.log.with_suffix(".lock")):  # a job of an earlier command may still be stopping
                _complete(job, console)
        except Exception as error:
            sentence = _sentence(error, console)
            say(console, sentence)
            return sentence
    return None


def _complete(job: Job, console: Console) -> None:
    """Train and evaluate what is missing; an evaluation that fails does not stop the others."""
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
    """Return an error in one line; the traceback of an unexpected one goes into the log."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return os_error_sentence(error)
    say(console, traceback.format_exc())
    return " ".join(f"{type(error).__name__}: {error}".split())


def _train(job: Job, console: Console) -> None:
    started = job.run.config_file.exists()
    if not started and job.folder.exists():
        shutil.rmtree(job.folder)  # killed before there was anything to continue from
    try:
        with settings_restored():
            run_pretraining(job.config, resume=started, console=console)
    finally:
        _free_memory()


def _evaluate(job: Job, name: str, console: Console) -> None:
    evaluation = job.evaluation(name)
    assert evaluation.out is not None
    result = evaluation.run(console)
    say(console, f"{result.protocol}: {result.statement}")
    job.write_evaluation(name, evaluation, result)
    # intermediate files from which an interrupted evaluation would continue
    shutil.rmtree(evaluation.out, ignore_errors=True)


def _free_memory() -> None:
    """Free the cached GPU memory, as the next job in this process may need all of it."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _stop_with_parent() -> None:
    """Stop, with a checkpoint, when the parent process ends, which closes our standard input."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Run one job as a process of its own; return its exit code."""
    out, arm, seed = sys.argv[1:]
    _stop_with_parent()
    try:
        with stopping_at_once():
            return 0 if run_job(Job(Plan.read(Path(out)), arm, int(seed))) is None else 1
    except Stopped as stop:
        return 128 + stop.signum


if __name__ == "__main__":
    sys.exit(main())
