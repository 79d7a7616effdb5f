import errno

import pytest

from unshuffle.wording import (
    counted,
    describe_concern,
    did_you_mean,
    duration,
    os_error_sentence,
    printable,
    time_left,
)


def test_counted() -> None:
    assert [counted(number, "images") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]


def test_did_you_mean() -> None:
    known = ["pretrain", "permutations", "pack"]
    assert did_you_mean("pretrian", known) == " (did you mean pretrain?)"
    assert did_you_mean("permutation", known, "--") == " (did you mean --permutations?)"
    assert did_you_mean("serve", known) == ""


def test_describe_concern() -> None:
    narrow = {"concern": "narrow_sampling", "entropy_fraction": 0.412}
    assert describe_concern(narrow) == "the sampling has narrowed to 41 % of the entropy of uniform sampling"
    dominant = {"concern": "dominant_group", "group": 3, "num_groups": 10, "fraction": 0.83}
    assert describe_concern(dominant) == "group 3 of 10 gets 83 % of the samples"


def test_control_characters_are_escaped_and_other_text_is_not() -> None:
    assert printable("a\x1b[31m\r\n\x9b\u202egnp.jpg") == r"a\x1b[31m\r\n\x9b\u202egnp.jpg"
    assert printable("Größe 2 × 3, 写真\\[1].jpg") == "Größe 2 × 3, 写真\\[1].jpg"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.8, "0.8 s"),
        (2, "2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (5 * 3600 + 12 * 60 + 20, "5 h 12 min"),
        (47.99 * 3600, "47 h 59 min"),
        (1967522, "22 days 19 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_time_left() -> None:
    assert time_left(60, 10, 20) == "2 min left"
    assert time_left(60, 0, 20) == "time left unknown"


def test_errors_of_the_system_are_sentences() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "/data/x")
    assert os_error_sentence(denied) == (
        "/data/x cannot be used: permission denied; change its permissions, or choose another place"
    )
    moved = OSError(errno.EXDEV, "Invalid cross-device link", "a", None, b"b")
    assert os_error_sentence(moved, "moved") == "a and b cannot be moved: invalid cross-device link"
    assert os_error_sentence(OSError("odd")) == "odd"
