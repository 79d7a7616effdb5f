import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unshuffle.errors import UserError
from unshuffle.permutations import (
    Criterion,
    HammingStatistics,
    hamming_statistics,
    inverse,
    load_permutations,
    permutation_set,
    save_permutations,
)

CRITERIA: list[Criterion] = ["maxmin", "mean"]


def distance(first, second):
    return sum(a != b for a, b in zip(first, second, strict=True))


def reference_set(parts, count, criterion, seed, include_identity):
    """The definition: at every step the distances of all candidates to all chosen permutations."""
    candidates = list(itertools.permutations(range(parts)))
    if not include_identity:
        candidates.remove(tuple(range(parts)))
    chosen = [candidates[np.random.default_rng(seed).integers(len(candidates))]]

    def criterion_value(candidate):
        distances = [distance(candidate, other) for other in chosen]
        return (min(distances), sum(distances)) if criterion == "maxmin" else (sum(distances),)

    while len(chosen) < count:
        # max() keeps the first of equals, and candidates are in lexicographic order
        chosen.append(max((c for c in candidates if c not in chosen), key=criterion_value))
    return chosen


def has_identity(permutations):
    return (permutations == np.arange(permutations.shape[1])).all(axis=1).any()


def are_distinct_permutations(permutations):
    parts = permutations.shape[1]
    distinct = len(np.unique(permutations, axis=0)) == len(permutations)
    return distinct and (np.sort(permutations, axis=1) == np.arange(parts)).all()


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("include_identity", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("parts", "count"), [(2, 1), (3, 4), (4, 15), (5, 30), (6, 12)])
def test_equals_the_reference(parts, count, criterion, seed, include_identity):
    ours = permutation_set(parts, count, criterion=criterion, seed=seed, include_identity=include_identity)
    assert ours.tolist() == [list(row) for row in reference_set(parts, count, criterion, seed, include_identity)]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("include_identity", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 4, 5, 6])
def test_a_set_of_all_permutations(parts, criterion, include_identity):
    count = math.factorial(parts) - (not include_identity)
    permutations = permutation_set(parts, count, criterion=criterion, include_identity=include_identity)
    assert permutations.shape == (count, parts)
    assert are_distinct_permutations(permutations)
    assert has_identity(permutations) == include_identity


@given(
    parts=st.integers(3, 7),
    fraction=st.floats(0, 1),
    criterion=st.sampled_from(CRITERIA),
    seed=st.integers(0, 2**32),
    include_identity=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_properties(parts, fraction, criterion, seed, include_identity):
    available = math.factorial(parts) - (not include_identity)
    count = max(1, round(fraction * min(available, 200)))
    permutations = permutation_set(parts, count, criterion=criterion, seed=seed, include_identity=include_identity)
    assert permutations.shape == (count, parts)
    assert permutations.dtype == np.int64
    assert are_distinct_permutations(permutations)
    assert include_identity or not has_identity(permutations)


@pytest.mark.parametrize("parts", [7, 12])
def test_the_seed_determines_the_set(parts):
    first = permutation_set(parts, 50, seed=3, pool_size=2000)
    np.testing.assert_array_equal(first, permutation_set(parts, 50, seed=3, pool_size=2000))
    assert not np.array_equal(first, permutation_set(parts, 50, seed=4, pool_size=2000))


def test_the_first_permutation_may_be_any_candidate():
    firsts = {tuple(permutation_set(3, 1, seed=seed)[0].tolist()) for seed in range(100)}
    assert firsts == set(itertools.permutations(range(3))) - {(0, 1, 2)}


def test_a_thousand_permutations_of_nine_parts_are_five_apart():
    permutations = permutation_set(9, 1000)
    assert are_distinct_permutations(permutations)
    statistics = hamming_statistics(permutations)
    assert statistics.minimum == 5
    assert statistics.mean == pytest.approx(8.008, abs=1e-4)


def test_the_mean_criterion_leaves_pairs_one_swap_apart():
    statistics = hamming_statistics(permutation_set(8, 1000, criterion="mean"))
    assert statistics.minimum == 2
    assert statistics.mean == pytest.approx(7.007, abs=1e-4)


@pytest.mark.parametrize(("parts", "count", "minimum"), [(16, 100, 13), (16, 1000, 12), (25, 1000, 21)])
def test_a_pool_of_random_candidates(parts, count, minimum):
    permutations = permutation_set(parts, count)
    assert permutations.shape == (count, parts)
    assert are_distinct_permutations(permutations)
    # A set of as many uniformly random permutations has a minimum of about 10, 8 and 17 at most.
    assert hamming_statistics(permutations).minimum >= minimum


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_pool_grows_with_the_count(criterion):
    permutations = permutation_set(10, 300, criterion=criterion, pool_size=10)
    assert are_distinct_permutations(permutations)
    # A pool of only 300 would leave no choice: 300 random permutations have a mean of about 9.
    assert hamming_statistics(permutations).mean > 9.02


def test_a_pool_of_all_permutations():
    permutations = permutation_set(10, 3, pool_size=10**9)
    assert hamming_statistics(permutations) == HammingStatistics(10, 10.0, 10)


def test_more_than_255_parts():
    permutations = permutation_set(300, 5, pool_size=100)
    assert permutations.shape == (5, 300)
    assert are_distinct_permutations(permutations)
    assert hamming_statistics(permutations).minimum > 290


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": 1, "count": 1}, "at least 2 parts, not 1"),
        ({"parts": 4, "count": 0}, "at least 1 permutation, not 0"),
        ({"parts": 4, "count": 24}, "only 23 permutations of 4 parts exist without the identity, not 24"),
        ({"parts": 4, "count": 25, "include_identity": True}, "only 24 permutations of 4 parts exist, not"),
        ({"parts": 10, "count": 10**8}, "only 3628799 permutations"),
        ({"parts": 4, "count": 3, "criterion": "median"}, "one of maxmin, mean, not 'median'"),
        ({"parts": 4, "count": 3, "seed": -1}, "seed must not be negative"),
    ],
)
def test_impossible_requests_are_user_errors(arguments, message):
    with pytest.raises(UserError, match=message):
        permutation_set(**arguments)


@given(st.integers(2, 12).flatmap(lambda parts: st.permutations(range(parts))))
def test_inverse(permutation):
    values = np.arange(len(permutation)) * 10
    back = inverse([permutation])[0]
    np.testing.assert_array_equal(values[permutation][back], values)
    np.testing.assert_array_equal(values[back][permutation], values)


def test_inverse_of_rows():
    permutations = permutation_set(5, 20)
    np.testing.assert_array_equal(
        np.take_along_axis(permutations, inverse(permutations), axis=1), np.tile(np.arange(5), (20, 1))
    )
    assert inverse(permutations).dtype == np.int64
    assert inverse([[2, 0, 1]]).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(("parts", "count"), [(3, 2), (5, 40), (9, 30)])
def test_statistics_against_brute_force(parts, count):
    rng = np.random.default_rng(0)
    permutations = rng.permuted(np.tile(np.arange(parts), (count, 1)), axis=1)
    distances = [distance(a, b) for a, b in itertools.combinations(permutations.tolist(), 2)]
    statistics = hamming_statistics(permutations)
    assert (statistics.minimum, statistics.maximum) == (min(distances), max(distances))
    assert statistics.mean == pytest.approx(np.mean(distances))


def test_statistics_of_one_permutation():
    assert hamming_statistics([[1, 0, 2]]) == HammingStatistics(3, 3.0, 3)


def test_statistics_of_an_empty_set_are_a_user_error():
    with pytest.raises(UserError, match="rows and columns"):
        hamming_statistics(np.zeros((0, 9), dtype=np.int64))


@pytest.mark.parametrize("name", ["set.npy", "set", "set.v1"])
def test_round_trip_under_the_exact_name(tmp_path, name):
    permutations = permutation_set(6, 50)
    save_permutations(tmp_path / name, permutations)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    loaded = load_permutations(str(tmp_path / name))
    np.testing.assert_array_equal(loaded, permutations)
    assert loaded.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, ">i4"])
@pytest.mark.parametrize("base", [0, 1])
def test_any_integer_type_and_either_base_can_be_loaded(tmp_path, dtype, base):
    permutations = permutation_set(6, 50)
    np.save(tmp_path / "set.npy", np.asfortranarray(permutations + base).astype(dtype))
    loaded = load_permutations(tmp_path / "set.npy")
    np.testing.assert_array_equal(loaded, permutations)
    assert loaded.dtype == np.int64


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.arange(3), "2-D array of integers, not 1-D"),
        (np.zeros((1, 2, 2), dtype=int), "2-D array of integers, not 3-D"),
        (np.array([[0.0, 1.0]]), "2-D array of integers, not 2-D of float64"),
        (np.array([[False, True]]), "2-D array of integers, not 2-D of bool"),
        (np.zeros((0, 9), dtype=int), "at least 1 row"),
        (np.zeros((1, 1), dtype=int), "2 columns"),
        (np.array([[0, 1, 2], [0, 1, 1]]), "row 1 of .* is not a permutation of 0..2"),
        (np.array([[0, 1, 2], [1, 2, 3]]), "row 1 of .* is not a permutation"),
        (np.array([[2, 3, 4]]), "row 0 of .* is not a permutation"),
        (np.array([[-1, 0, 1]]), "row 0 of .* is not a permutation"),
        (np.array([[0, 1], [1, 0], [0, 1]]), "duplicate rows"),
    ],
)
def test_invalid_sets_are_user_errors(tmp_path, rows, message):
    np.save(tmp_path / "set.npy", rows)
    with pytest.raises(UserError, match=message):
        load_permutations(tmp_path / "set.npy")
    with pytest.raises(UserError, match=message):
        save_permutations(tmp_path / "other.npy", rows)
    assert not (tmp_path / "other.npy").exists()


def write_empty(path: Path):
    path.touch()


def write_text(path: Path):
    path.write_text("0 1 2\n2 1 0\n")


def write_truncated(path: Path):
    save_permutations(path, permutation_set(5, 9))
    path.write_bytes(path.read_bytes()[:-7])


def write_truncated_header(path: Path):
    save_permutations(path, permutation_set(5, 9))
    path.write_bytes(path.read_bytes()[:40])


def write_objects(path: Path):
    np.save(path, np.array([[0, 1], [1, None]], dtype=object), allow_pickle=True)


def write_archive(path: Path):
    with path.open("wb") as file:
        np.savez(file, permutations=permutation_set(5, 9))


def write_huge_shape(path: Path):
    header = {"descr": "<i8", "fortran_order": False, "shape": (2**40, 2**10)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)


def write_open_bracket(path: Path):
    header = b"{'descr': ("
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


@pytest.mark.parametrize(
    "write",
    [
        write_empty,
        write_text,
        write_truncated,
        write_truncated_header,
        write_objects,
        write_archive,
        write_huge_shape,
        write_open_bracket,
    ],
)
def test_unreadable_files_are_user_errors(tmp_path, write):
    write(tmp_path / "set.npy")
    with pytest.raises(UserError, match=r"set\.npy is not a readable \.npy file"):
        load_permutations(tmp_path / "set.npy")


def test_files_that_cannot_be_opened_are_user_errors(tmp_path):
    permutations = permutation_set(4, 3)
    with pytest.raises(UserError, match=r"cannot read .*absent\.npy"):
        load_permutations(tmp_path / "absent.npy")
    with pytest.raises(UserError, match="cannot read"):
        load_permutations(tmp_path)
    with pytest.raises(UserError, match=r"folder .*absent does not exist"):
        save_permutations(tmp_path / "absent" / "set.npy", permutations)
    with pytest.raises(UserError, match="cannot write"):
        save_permutations(tmp_path, permutations)
