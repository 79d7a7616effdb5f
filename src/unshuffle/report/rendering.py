"""What all pages are made of: templates, scripts and styles; imports no torch."""

import base64
import hashlib
import importlib.metadata
from pathlib import Path

import jinja2

from unshuffle.wording import counted


def environment() -> jinja2.Environment:
    """Return the settings of all templates."""
    settings = jinja2.Environment(
        loader=jinja2.PackageLoader("unshuffle.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    settings.filters["counted"] = counted
    settings.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return settings


def template_source(name: str) -> str:
    """Return one of the scripts and styles of the page."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def d3() -> str:
    """Return the source of D3, which the package mpld3 contains; importing that would import matplotlib."""
    file = importlib.metadata.distribution("mpld3").locate_file("mpld3/js/d3.v5.min.js")
    return Path(str(file)).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """Return the hash that allows a script in the page's content security policy; no other script may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
