"""How the tests run an analysis; the tiny runs are in tests/conftest.py."""

from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from unshuffle.analysis.analysis import AnalysisResult, find_analysis


@pytest.fixture
def analyse() -> Callable[..., AnalysisResult]:
    """A function that runs the analysis of a name with some options."""

    def analyse_quietly(name: str, **options: Any) -> AnalysisResult:
        return find_analysis(name)(**options).analyse(Console(quiet=True))

    return analyse_quietly
