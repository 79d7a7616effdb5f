"""Sets of permutations that lie far apart, so that telling them apart is a task worth learning.

A permutation ψ is a row of 0-based part numbers, read as in the paper: ψ(x) = (x_ψ1, x_ψ2, …), that is,
position t of the shuffled sequence holds source part ψ[t].
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from unshuffle.errors import UserError

Criterion = Literal["maxmin", "mean"]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]

EXACT_PARTS = 9  # up to here all n! permutations are candidates; 10! would take ten times as long
POOL_PER_CHOICE = 4  # a smaller random pool would leave the last choices next to no choice


@dataclass(frozen=True)
class HammingStatistics:
    """Hamming distances (number of positions that differ) over all pairs of a permutation set."""

    minimum: int
    mean: float
    maximum: int


def permutation_set(
    parts: int,
    count: int,
    *,
    criterion: Criterion = "maxmin",
    seed: int = 0,
    include_identity: bool = False,
    pool_size: int = 100_000,
) -> npt.NDArray[np.int64]:
    """Choose `count` distinct permutations of `parts` parts greedily, far from one another.

    The first is drawn uniformly from the candidates; then, again and again, the best candidate against all
    those chosen so far is taken (Noroozi and Favaro, 2016):

    - `maxmin`: the largest minimum Hamming distance, among those the largest mean distance;
    - `mean`: the largest mean Hamming distance. This is the paper's criterion, but it leaves pairs that are
      only one swap apart.

    Candidates stand in lexicographic order, and what is still tied goes to the first of them. Up to nine
    parts they are all permutations; above that, a seeded pool of `pool_size` random ones (enlarged to four
    times `count` where that is more). `include_identity` lets the identity be a candidate; it does not force
    it into the set.

    Returns 0-based rows of shape (count, parts), in the order of choice.
    """
    available = _check_request(parts, count, criterion, seed, include_identity)
    rng = np.random.default_rng(seed)
    size = min(max(pool_size, POOL_PER_CHOICE * count), available)
    # Drawing distinct permutations at random stalls once most are taken: then list them all instead.
    if parts <= EXACT_PARTS or 2 * size > available:
        candidates = _all_permutations(parts)
        if not include_identity:
            candidates = candidates[:, 1:]  # the identity is lexicographically first
    else:
        candidates = _random_permutations(parts, size, include_identity, rng)
    chosen = _choose(candidates, count, criterion, first=int(rng.integers(candidates.shape[1])))
    return candidates[:, chosen].T.astype(np.int64, order="C")


def inverse(permutations: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Invert each row: `x[ψ][inverse(ψ)]` is `x` again, and so is `x[inverse(ψ)][ψ]`."""
    return np.argsort(np.asarray(permutations), axis=-1).astype(np.int64, copy=False)


def hamming_statistics(permutations: npt.ArrayLike) -> HammingStatistics:
    """Minimum, mean and maximum Hamming distance over all pairs of rows.

    A single permutation has no pair: it counts as perfectly separated, at distance `parts` throughout.
    """
    rows = np.asarray(permutations)
    if rows.ndim != 2 or 0 in rows.shape:
        raise UserError(f"a permutation set must have rows and columns, but its shape is {rows.shape}")
    count, parts = rows.shape
    if count == 1:
        return HammingStatistics(parts, float(parts), parts)
    columns = np.ascontiguousarray(rows.T, dtype=_small_type(parts))
    # One row against all later ones at a time: memory stays linear in the number of rows.
    agreements = (_agreements(columns[:, i + 1 :], columns[:, i]) for i in range(count - 1))
    extremes_and_sums = [(int(a.min()), int(a.max()), int(a.sum(dtype=np.int64))) for a in agreements]
    fewest, most, sums = zip(*extremes_and_sums, strict=True)
    return HammingStatistics(parts - max(most), parts - sum(sums) / math.comb(count, 2), parts - min(fewest))


def save_permutations(path: str | Path, permutations: npt.ArrayLike) -> None:
    """Write a permutation set as .npy under exactly this file name; the folder must exist."""
    path = Path(path)
    rows = _validated(np.asarray(permutations), "the permutation set")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        # An open file, because np.save appends ".npy" to a name that lacks it.
        with path.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def load_permutations(path: str | Path) -> npt.NDArray[np.int64]:
    """Read a permutation set from .npy; a 1-based file, as some public ones are, comes back 0-based."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            # Not np.load, which would also try zip archives and pickles.
            rows = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, MemoryError, OverflowError) as error:
        raise UserError(f"{path} is not a readable .npy file of numbers") from error
    return _validated(rows, str(path))


def _check_request(parts: int, count: int, criterion: str, seed: int, include_identity: bool) -> int:
    """Raise for what cannot be done; return how many permutations there are to choose from."""
    if parts < 2:
        raise UserError(f"a permutation needs at least 2 parts, not {parts}")
    if count < 1:
        raise UserError(f"a permutation set needs at least 1 permutation, not {count}")
    if criterion not in get_args(Criterion):
        raise UserError(f"the criterion must be one of {', '.join(get_args(Criterion))}, not {criterion!r}")
    if seed < 0:
        raise UserError(f"the seed must not be negative, but is {seed}")
    available = math.factorial(parts) - (not include_identity)
    if count > available:
        without = "" if include_identity else " without the identity"
        raise UserError(f"only {available} permutations of {parts} parts exist{without}, not {count}")
    return available


def _small_type(largest: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds `largest`: the search is bound by memory traffic."""
    return np.min_scalar_type(largest)


def _all_permutations(parts: int) -> IntArray:
    """All permutations in lexicographic order, as columns of an array (parts, parts!)."""
    columns: IntArray = np.zeros((1, 1), dtype=_small_type(parts))
    for size in range(2, parts + 1):
        # Behind each first value come all shorter permutations, renumbered to skip that value.
        blocks = [np.vstack([np.full_like(columns[:1], v), columns + (columns >= v)]) for v in range(size)]
        columns = np.hstack(blocks)
    return columns


def _random_permutations(parts: int, size: int, include_identity: bool, rng: np.random.Generator) -> IntArray:
    """`size` distinct random permutations in lexicographic order, as columns of an array (parts, size)."""
    identity = np.arange(parts, dtype=_small_type(parts))
    rows = identity[:0].repeat(parts).reshape(0, parts)
    while len(rows) < size:
        drawn = rng.permuted(np.tile(identity, (size - len(rows), 1)), axis=1)
        rows = np.unique(np.vstack([rows, drawn]), axis=0)
        if not include_identity and np.array_equal(rows[0], identity):
            rows = rows[1:]
    return np.ascontiguousarray(rows.T)


def _choose(candidates: IntArray, count: int, criterion: str, first: int) -> npt.NDArray[np.intp]:
    """Indices of the greedily chosen candidates (columns).

    Works on agreements, positions where two permutations are equal: the distance is `parts` less those, so
    the farthest candidate has the fewest, and integers tie exactly where float means might not.
    """
    parts, available = candidates.shape
    most = np.zeros(available, dtype=candidates.dtype)  # agreements with the nearest of the chosen
    total = np.zeros(available, dtype=_small_type(parts * count))  # agreements with all of the chosen
    chosen = np.full(count, first, dtype=np.intp)
    for step in range(1, count):
        agreements = _agreements(candidates, candidates[:, chosen[step - 1]])
        total += agreements
        if criterion == "mean":
            total[chosen[:step]] = np.iinfo(total.dtype).max  # never again
            chosen[step] = total.argmin()
        else:
            # A chosen one agrees with itself everywhere, so `most` alone rules it out.
            np.maximum(most, agreements, out=most)
            tied = np.flatnonzero(most == most.min())
            chosen[step] = tied[total[tied].argmin()]
    return chosen


def _agreements(columns: IntArray, permutation: IntArray) -> IntArray:
    """For each column, the number of positions where it equals the permutation."""
    agreements = np.zeros(columns.shape[1], dtype=columns.dtype)
    for position, value in zip(columns, permutation, strict=True):
        agreements += (position == value).view(np.uint8)  # as integers, or numpy would convert by blocks
    return agreements


def _validated(rows: npt.NDArray[Any], name: str) -> npt.NDArray[np.int64]:
    """The rows as 0-based int64, or a UserError that says what is wrong with them."""
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise UserError(f"{name} must be a 2-D array of integers, not {rows.ndim}-D of {rows.dtype}")
    if rows.shape[0] < 1 or rows.shape[1] < 2:
        raise UserError(f"{name} must have at least 1 row and 2 columns, but its shape is {rows.shape}")
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if rows.min() == 1:
        rows = rows - 1
    parts = rows.shape[1]
    wrong = np.flatnonzero((np.sort(rows, axis=1) != np.arange(parts)).any(axis=1))
    if wrong.size:
        raise UserError(f"row {wrong[0]} of {name} is not a permutation of 0..{parts - 1} (or 1..{parts})")
    if len(np.unique(rows, axis=0)) < len(rows):
        raise UserError(f"{name} has duplicate rows")
    return rows
