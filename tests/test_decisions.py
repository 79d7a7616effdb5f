"""The table of docs/explanation/decisions.md says what the presets are."""

import re
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from unshuffle.config import preset_config
from unshuffle.errors import UserError
from unshuffle.options import differences, merge

DECISIONS = Path(__file__).parents[1] / "docs" / "explanation" / "decisions.md"
PRESETS = ("paper-literal", "paper", "small")
UNIMPORTANT = re.compile(r"preset|data\.workers|log\..*")
"""Fields in which presets differ without a row: they do not change what is learned."""

Values = dict[str, Any]


@cache
def columns() -> dict[str, Values]:
    """The values of each preset by the dotted names of their fields, as the table has them."""
    section = DECISIONS.read_text(encoding="utf-8").split("## The paper and the presets")[1].split("\n#")[0]
    table: dict[str, Values] = {preset: {} for preset in PRESETS}
    heads, _, *rows = [cells_of(line) for line in section.splitlines() if line.startswith("|")]
    for row in rows:
        cells = dict(zip(heads, row, strict=True))
        fields = re.findall(r"`([\w.]+)`", cells["field"])
        for preset in PRESETS if fields else ():
            values = cells[f"`{preset}`"].split("<br>")
            shared = values * len(fields) if len(values) == 1 else values
            for field, value in zip(fields, shared, strict=True):
                assert field not in table[preset], f"{field} has two rows"
                table[preset][field] = value_of(value)
    return table


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def value_of(text: str) -> Any:
    """A value as in a YAML file, or a fraction such as 224/240."""
    return float(Fraction(text)) if re.fullmatch(r"\d+/\d+", text) else yaml.safe_load(text)


def nested(values: Values) -> Values:
    tree: Values = {}
    for field, value in values.items():
        *sections, name = field.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree


def wrong_fields(preset: str, values: Values) -> list[str]:
    """The fields of a preset that have other values; a field that does not exist is a UserError."""
    config = preset_config(preset)
    return differences(config, merge(config, nested(values)))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_table_has_the_values_of_the_presets(preset: str) -> None:
    assert wrong_fields(preset, columns()[preset]) == []


@pytest.mark.parametrize(("one", "other"), [("paper-literal", "paper"), ("paper", "small"), ("paper-literal", "small")])
def test_every_difference_between_the_presets_has_a_row(one: str, other: str) -> None:
    differing = differences(preset_config(one), preset_config(other))
    assert [field for field in differing if field not in columns()[one] and not UNIMPORTANT.fullmatch(field)] == []


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("permutations.per_sample", "2"),
        ("temporal.crop_fraction", "224/256"),
        ("optim.milestones", "[200000, 300000]"),
        ("optim.backbone.weight_decay", "0.0"),
        ("policy.action", "batch"),
        ("policy.size_prior", "false"),
        ("init", "weights.safetensors"),
    ],
)
def test_a_value_that_differs_from_the_preset_is_found(field: str, text: str) -> None:
    assert wrong_fields("paper", {**columns()["paper"], field: value_of(text)}) == [field]


@pytest.mark.parametrize("values", [{"policy.sample": 1}, {"polcy.lr": 0.1}, {"permutations.per_sample": 1.0}])
def test_unknown_fields_and_other_types_are_refused(values: Values) -> None:
    with pytest.raises(UserError):
        wrong_fields("paper", values)
