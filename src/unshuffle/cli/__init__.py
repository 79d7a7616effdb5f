"""The command line: which command runs, and what its errors and exit codes are."""

import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from unshuffle import __version__
from unshuffle.cli import (
    ablate,
    analyze,
    bench,
    cache,
    completion,
    doctor,
    embed,
    evaluate,
    export,
    neighbours,
    pack,
    permutations,
    pretrain,
    report,
    serve,
)
from unshuffle.cli.parsing import HELP, overview
from unshuffle.errors import ReportedElsewhere, UserError
from unshuffle.lazy import find_entry
from unshuffle.stopping import explain_bus_errors, join
from unshuffle.wording import os_error_sentence, printable

SUMMARY = "Learn visual features without labels by putting image tiles and video frames back in order."
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it; other signals have higher ones."""

COMMANDS = {
    "pretrain": (pretrain.main, pretrain.PretrainCommand.__doc__),
    "doctor": (doctor.main, doctor.DoctorCommand.__doc__),
    "permutations": (permutations.main, permutations.PermutationsCommand.__doc__),
    "pack": (pack.main, pack.PackCommand.__doc__),
    "evaluate": (evaluate.main, evaluate.SUMMARY),
    "analyze": (analyze.main, analyze.SUMMARY),
    "ablate": (ablate.main, ablate.AblateCommand.__doc__),
    "report": (report.main, report.ReportCommand.__doc__),
    "serve": (serve.main, serve.ServeCommand.__doc__),
    "bench": (bench.main, bench.BenchCommand.__doc__),
    "export": (export.main, export.ExportCommand.__doc__),
    "embed": (embed.main, embed.EmbedCommand.__doc__),
    "neighbours": (neighbours.main, neighbours.NeighboursCommand.__doc__),
    "cache": (cache.main, cache.CacheCommand.__doc__),
    "completion": (completion.main, completion.CompletionCommand.__doc__),
}
"""What runs each command with the words that follow its name, and its line in `unshuffle --help`."""


def main() -> None:
    """Run the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be valid text
    explain_bus_errors()
    _shorten_warnings()
    code = run(sys.argv[1:])
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    if code >= INTERRUPTED and not join([thread for thread in others if not thread.daemon]):
        # Python would wait for threads that are inside a decoder or a slow connection, and ignore Ctrl-C meanwhile.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _shorten_warnings() -> None:
    """Print the warnings of libraries as one sentence each, and none of Pillow's.

    Pillow warns about metadata that is not used here; a file that it cannot decode is an error, which is listed.
    """

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)

    warnings.showwarning = show
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)


def run(args: Sequence[str]) -> int:
    """Run a command line and return its exit code: 2, with one sentence, for errors that the user can correct."""
    try:
        if not args or args[0] in HELP:
            summaries = {name: summary for name, (_, summary) in COMMANDS.items()}
            print(overview("unshuffle COMMAND [OPTIONS]", SUMMARY, summaries))
            return 0 if args else 2
        if args[0] == "--version":
            print(f"unshuffle {__version__}")
            return 0
        command, _ = find_entry(args[0], COMMANDS, "command")
        return command(args[1:])
    except ReportedElsewhere:
        return 2
    except KeyboardInterrupt:
        print("unshuffle: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError:
        print("unshuffle: out of memory: lower the batch size or permutations.per_sample", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's class, by name: importing torch takes seconds
            raise
        print("unshuffle: out of GPU memory: lower the batch size or permutations.per_sample", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"unshuffle: {printable(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:  # no permission, disk full ...
        print(f"unshuffle: {printable(os_error_sentence(error))}", file=sys.stderr)
        return 2
