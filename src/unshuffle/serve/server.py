"""The server process: a socket, uvicorn, and the address to open."""

import socket
import webbrowser
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from unshuffle.errors import UserError

GRACE_SECONDS = 3
"""Open streams are ended so long after Ctrl-C."""


def serve(app: Starlette, host: str, port: int, token: str | None, *, opens: bool) -> None:
    """Serve an application until it is interrupted; print the address first."""
    listening = _listen(host, port)
    anywhere = host in ("0.0.0.0", "::")  # noqa: S104 (the address that another machine can use is printed)
    shown = _own_address(listening.family) if anywhere else host
    name = f"[{shown}]" if ":" in shown else shown
    query = f"?token={token}" if token else ""
    address = f"http://{name}:{listening.getsockname()[1]}/{query}"
    print(f"{address}  (Ctrl-C ends the server; training continues)", flush=True)
    if opens:
        webbrowser.open(address)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=500,
        h11_max_incomplete_event_size=64_000,
    )
    try:
        _EndingServer(config).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has ended in order and passes the signal on
        return
    finally:
        listening.close()


class _EndingServer(uvicorn.Server):
    """Tells the streams of the application to end when it is asked to."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal."""
        self.config.app.state.stopping = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def _own_address(family: socket.AddressFamily) -> str:
    """Return the address by which other machines reach this one; its name need not be known to them."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1", 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:  # no network
            return socket.gethostname()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # before the address is printed
    except (OSError, UnicodeError) as problem:
        listening.close()
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{host} port {port} cannot be used ({reason}): give another --host or --port") from None
    return listening
