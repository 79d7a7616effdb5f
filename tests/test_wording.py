from typing import Any

from unshuffle.wording import counted, did_you_mean, plus_minus, source_sentence, split_sentence

SOURCE: dict[str, Any] = {
    "medium": "images",
    "address": "photos",
    "items": 1,
    "skipped": 2,
    "storage": "store",
    "path": "cache/x",
    "short_side": 256,
    "shards": 0,
}


def test_counted() -> None:
    assert [counted(number, "images") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]


def test_did_you_mean() -> None:
    known = ["pretrain", "permutations", "pack"]
    assert did_you_mean("pretrian", known) == " (did you mean pretrain?)"
    assert did_you_mean("permutation", known, "--") == " (did you mean --permutations?)"
    assert did_you_mean("serve", known) == ""


def test_plus_minus() -> None:
    assert [plus_minus(*pair) for pair in ((1.25, 0.5), (1.0, None), (None, None))] == ["1.2 ± 0.5", "1.0", "-"]


def test_sources_in_a_sentence() -> None:
    assert source_sentence(SOURCE) == "1 image in photos, 2 files skipped; packed at short side 256 px in cache/x"
    shards = {**SOURCE, "storage": "shards", "items": 20, "skipped": 0, "path": None, "shards": 3}
    assert source_sentence(shards) == "20 images in photos; read from 3 shards at short side 256 px"
    synthetic = {**SOURCE, "storage": "synthetic", "medium": "videos", "address": None, "items": 30, "short_side": 32}
    assert source_sentence(synthetic) == "30 clips of the synthetic world, 32 px"


def test_splits_in_a_sentence() -> None:
    split = {"training": 80, "validation": 20, "requested": 20, "source": "videos"}
    assert split_sentence("first", split) is None and split_sentence("first", split, "videos") is None
    assert split_sentence("first", split, "images") == (
        "first task: no images were given, so the frames of the videos are used"
    )
    assert split_sentence("first", {**split, "requested": 100}) == (
        "first task: only 20 of 100 samples are held out for validation (data.val_size is 100), "
        "as most of so few must be trained on"
    )
