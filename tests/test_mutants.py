"""The list of deliberate bugs fits the source; `make mutants` runs it."""

from pathlib import Path

import pytest

from mutants import read_mutants

ROOT = Path(__file__).parents[1]


MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.bug for mutant in MUTANTS])
def test_a_mutant_can_be_made(mutant) -> None:
    assert mutant.problem() is None
    assert mutant.text != mutant.wrong
    assert all((ROOT / "tests" / test.split("::")[0]).is_file() for test in mutant.tests.split())


def test_there_are_enough_of_different_kinds() -> None:
    assert len(MUTANTS) >= 30 and len({mutant.file for mutant in MUTANTS}) >= 12
    assert len({mutant.bug for mutant in MUTANTS}) == len(MUTANTS)
