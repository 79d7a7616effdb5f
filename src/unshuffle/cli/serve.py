"""`unshuffle serve`."""

import importlib.util
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Interval

from unshuffle.cli.parsing import POSITIONAL, parse
from unshuffle.errors import UserError


@dataclass(frozen=True)
class ServeCommand:
    """Show runs live in a local browser: curves as they train, comparisons, search by similarity, puzzles."""

    runs: Annotated[tuple[Path, ...], POSITIONAL] = (Path("runs"),)
    """Folders of runs, of an ablation, or run folders."""
    data: tuple[str, ...] = ()
    """Folders of images to search, beside those that the runs were trained on."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own (127.0.0.1, ::1, localhost) needs a token, which is printed."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8421
    """Port to listen on; 0 is any free one."""
    token: str = ""
    """Token that the address must contain; by default a random one if the host is not this machine alone."""
    open: bool = False
    """Open the page in the browser."""


def main(args: Sequence[str]) -> int:
    """Serve until Ctrl-C."""
    command = parse(ServeCommand, "serve", args)
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"the live page needs {' and '.join(missing)}: pip install 'unshuffle[serve]'")
    from unshuffle.serve.app import build_app
    from unshuffle.serve.safety import is_loopback
    from unshuffle.serve.server import serve

    token = command.token or (None if is_loopback(command.host) else secrets.token_urlsafe(16))
    folders = [folder.expanduser() for folder in command.runs]
    app = build_app(folders, host=command.host, token=token, data=command.data)
    serve(app, command.host, command.port, token, opens=command.open)
    return 0
