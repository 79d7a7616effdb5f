from unshuffle.wording import counted, describe_concern, did_you_mean, printable


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
