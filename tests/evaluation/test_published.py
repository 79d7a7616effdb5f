from io import StringIO

from rich.console import Console

from unshuffle.evaluation.published import published, published_table


def test_all_tables_are_there() -> None:
    assert [len(published(table)) for table in "12345"] == [4, 12, 8, 9, 7]
    assert sum(len(figures) for table in "1234" for figures in published(table).values()) == 40 + 20 + 14 + 25
    assert published("1")["Büchler et al."]["UCF-101 top1"] == 25.7
    assert published("4")["Büchler et al."] == {"classification": 74.2, "detection": 52.8, "segmentation": 42.8}
    assert "linear" not in published("2")["NAT"]
    assert published("5")["S&T"] == {"classification": 69.8, "UCF-101": 54.2}
    assert published("5")["S+T+P"]["classification"] == published("4")["Büchler et al."]["classification"]


def test_ours_stand_above_theirs() -> None:
    said = StringIO()
    theirs = {"top 1": "VOC 2007 top1"}
    ours = {"this network": {"top 1": 33.333, "mine": 1.0}, "blind guess": {"mine": 0.5}}
    Console(file=said, width=200).print(published_table("1", ours, "VOC 2007", theirs))
    lines = [line.split() for line in said.getvalue().splitlines() if line.strip()]
    assert lines[0] == ["[%]", "top", "1", "mine"] and lines[1] == ["this", "network", "33.3", "1.0"]
    assert lines.pop(2) == ["blind", "guess", "-", "0.5"]
    assert " ".join(lines[2]) == "published, other data (VOC 2007)"
    assert lines[3] == ["Random", "17.6", "-"] and len(lines) == 7
    Console(file=said, width=200).print(published_table("1", ours, "VOC 2007", theirs, same=True))
    assert "published, VOC 2007 " in said.getvalue()


def test_a_table_that_the_paper_does_not_have() -> None:
    assert published_table("3", {"this network": {"top 1": 1.0}}, "UCF-101").row_count == 1
