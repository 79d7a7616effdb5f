from unshuffle.wording import counted, did_you_mean


def test_counted() -> None:
    assert [counted(number, "images") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]


def test_did_you_mean() -> None:
    known = ["pretrain", "permutations", "pack"]
    assert did_you_mean("pretrian", known) == " (did you mean pretrain?)"
    assert did_you_mean("permutation", known, "--") == " (did you mean --permutations?)"
    assert did_you_mean("serve", known) == ""
