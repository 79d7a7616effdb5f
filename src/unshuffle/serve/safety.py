"""Who may ask: the Host and the Origin of a request, the token, and what a browser may do with an answer."""

import ipaddress
import secrets
import socket
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "unshuffle_token_{port}"
"""Browsers send the cookies of all servers of a machine to each of them."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Lets a request pass only if it is meant for this server and comes from its own pages.

    A page elsewhere cannot read answers, but it could make a browser send requests, or give this machine's address a
    name of its own (DNS rebinding); the Host and Origin headers tell.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        self._app, self._host, self._token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._is_ours(host):
            return problem_response(headers, 421, "this address does not belong to the server")
        origin = headers.get("origin")
        foreign = headers.get("sec-fetch-site", "same-origin") in ("cross-site", "same-site")
        navigates = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if (origin is not None and origin != f"http://{host}") or (foreign and not navigates):
            return problem_response(headers, 403, "requests from other sites are refused")
        if self._token is None:
            return None
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if self._is_token(query.pop("token", "")):
            target = f"{scope['path']}?{urlencode(query)}" if query else scope["path"]
            answer = RedirectResponse("/" + target.lstrip("/"), 303)  # the token does not stay in the address
            answer.set_cookie(_cookie_name(host), self._token, httponly=True, samesite="strict")
            return answer
        given = _cookie(headers, host), headers.get("authorization", "").removeprefix("Bearer ")
        if any(map(self._is_token, given)):
            return None
        return problem_response(headers, 401, "the token is missing: open the address that the server printed")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(self._host):
            return is_loopback(name)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", self._host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        return True  # an address is no name that another site could give to this machine

    def _is_token(self, given: str) -> bool:
        return self._token is not None and secrets.compare_digest(given.encode(), self._token.encode())


def _cookie_name(host: str) -> str:
    return COOKIE.format(port=host.rpartition(":")[2] if host.rpartition(":")[2].isdigit() else 80)


def _cookie(headers: Headers, host: str) -> str:
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    name = _cookie_name(host)
    return cookies[name].value if name in cookies else ""


def problem_response(headers: Headers, status: int, problem: str) -> Response:
    """Return a problem as JSON, or as a small page if a person has opened the address."""
    if "text/html" not in headers.get("accept", ""):
        return JSONResponse({"error": problem}, status)
    sentence = f"{problem[:1].upper()}{problem[1:]}."
    head = "<!doctype html><html lang='en'><meta name='viewport' content='width=device-width'><title>unshuffle</title>"
    return HTMLResponse(f"{head}<h1>unshuffle</h1><p>{escape(sentence)}</p><p><a href='/'>All runs</a></p>", status)
