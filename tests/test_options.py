from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MinLen

from unshuffle.config import demo, paper
from unshuffle.errors import UserError
from unshuffle.options import check_bounds, differences, merge, plain_type, read_yaml, to_dict, write_yaml


@dataclass(frozen=True)
class Inner:
    lr: Annotated[float, Gt(0)] = 0.1
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    fraction: Annotated[float, Gt(0), Le(1)] = 0.5
    free: float = 0.0


@dataclass(frozen=True)
class Section:
    batch_size: Annotated[int, Ge(2)] = 2
    backbone: Inner = Inner()
    milestones: tuple[Annotated[int, Ge(1)], ...] = (1,)
    sizes: Annotated[tuple[int, ...], MinLen(1)] = (1,)
    pair: Annotated[tuple[float, ...], Len(2, 2)] = (0.0, 1.0)


@dataclass(frozen=True)
class Options:
    limit: Annotated[int, Ge(1)] | None = None
    depth: Annotated[int | None, Lt(5), "a note of another library"] = None
    kind: Annotated[Literal["a", "b"], "note"] = "a"
    optim: Section = field(default_factory=Section)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"limit": 1, "depth": 4, "kind": "b"},
        {"optim": {"batch_size": 2, "milestones": [], "sizes": [0], "pair": [1, -1]}},
        {"optim": {"backbone": {"lr": 1e-9, "momentum": 0, "fraction": 1.0, "free": float("inf")}}},
    ],
)
def test_values_within_their_bounds(values: dict[str, Any]) -> None:
    check_bounds(merge(Options(), values))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"limit": 0}, "limit is 0, but must be 1 or more"),
        ({"depth": 5}, "depth is 5, but must be below 5"),
        ({"optim": {"batch_size": 1}}, "optim.batch_size is 1, but must be 2 or more"),
        ({"optim": {"backbone": {"lr": 0}}}, "optim.backbone.lr is 0.0, but must be above 0"),
        ({"optim": {"backbone": {"lr": float("nan")}}}, "optim.backbone.lr is nan, but must be a finite number"),
        ({"optim": {"backbone": {"lr": float("inf")}}}, "optim.backbone.lr is inf, but must be a finite number"),
        ({"optim": {"backbone": {"momentum": 1}}}, "optim.backbone.momentum is 1.0, but must be 0 or more and below 1"),
        (
            {"optim": {"backbone": {"momentum": -0.1}}},
            "optim.backbone.momentum is -0.1, but must be 0 or more and below",
        ),
        ({"optim": {"backbone": {"fraction": 0}}}, "optim.backbone.fraction is 0.0, but must be above 0 and at most 1"),
        (
            {"optim": {"backbone": {"fraction": 1.5}}},
            "optim.backbone.fraction is 1.5, but must be above 0 and at most 1",
        ),
        ({"optim": {"milestones": [3, 0]}}, "optim.milestones is 0, but must be 1 or more"),
        ({"optim": {"sizes": []}}, "optim.sizes has 0 values, but must have 1 or more"),
        ({"optim": {"pair": [1]}}, "optim.pair has 1 value, but must have 2 or more and at most 2"),
    ],
)
def test_values_out_of_their_bounds(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        check_bounds(merge(Options(), values))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"limit": "x"}, "limit is 'x', but must be a whole number"),
        ({"depth": 1.5}, "depth is 1.5, but must be a whole number"),
        ({"kind": "c"}, "kind is 'c', but must be one of a, b"),
        ({"optim": {"batch_size": None}}, "optim.batch_size is None, but must be a whole number"),
        ({"optim": {"milestones": ["x"]}}, "optim.milestones is 'x', but must be a whole number"),
    ],
)
def test_annotated_fields_have_types_too(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        merge(Options(), values)


def test_plain_types() -> None:
    assert plain_type(Annotated[int, Ge(1)] | None) == (int, True)
    assert plain_type(Annotated[int | None, Ge(1)]) == (int, True)
    assert plain_type(int) == (int, False)


def test_the_dictionary_is_plain() -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, str) and plain(entry) for key, entry in value.items())
        if type(value) is list:
            return all(plain(entry) for entry in value)
        return value is None or type(value) in (str, int, float, bool)

    values = to_dict(replace(paper(), images="a"))
    assert plain(values)
    assert values["images"] == "a" and values["optim"]["milestones"] == [200_000]
    assert yaml.safe_load(yaml.safe_dump(values)) == values


def test_merge_leaves_the_original() -> None:
    config = demo()
    merged = merge(config, {"optim": {"batch_size": 99}})
    assert merged.optim.batch_size == 99 and config == demo()


def test_differences() -> None:
    assert differences(demo(), demo()) == []
    changed = merge(demo(), {"seed": 1, "images": "x", "optim": {"milestones": [1], "backbone": {"lr": 9.0}}})
    assert differences(demo(), changed) == ["images", "seed", "optim.milestones", "optim.backbone.lr"]
    assert differences(changed, demo()) == ["images", "seed", "optim.milestones", "optim.backbone.lr"]


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(30), r"line 2 refers to the alias \*a0: write it out"),
        ("a: &a {b: 1}\nc:\n  <<: *a", r"line 3 refers to the alias \*a: write it out"),
        ("a: &a [*a]", r"line 1 refers to the alias"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: 2020-13-45", "month must be in"),
        ("a: [1", "while parsing"),
        ("a: \x00", "special characters are not allowed"),
        ("- 1", "must hold keys and values"),
    ],
)
def test_yaml_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=problem) as refused:
        read_yaml(file, "config")
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_a_value_that_occurs_twice_is_written_twice(tmp_path: Path) -> None:
    shared = [1, 2]
    write_yaml(tmp_path / "a.yaml", {"one": shared, "two": shared})
    assert read_yaml(tmp_path / "a.yaml", "config") == {"one": [1, 2], "two": [1, 2]}
