from itertools import chain

import pytest

from unshuffle.data.share import WHOLE, Share


@pytest.mark.parametrize(("total", "of"), [(8, 1), (8, 2), (8, 8), (100, 8), (5, 3)])
def test_shares_are_contiguous_complete_and_nearly_equal(total: int, of: int) -> None:
    parts = [list(range(total))[Share(index, of).rows(total)] for index in range(of)]
    assert list(chain(*parts)) == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_whole_is_one_share() -> None:
    assert WHOLE.rows(7) == slice(0, 7)
