"""Permutation sets Ψ: permutations that are far apart in Hamming distance, to be told apart by the network.

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
POOL_FACTOR = 4  # candidates per permutation of the set: with fewer the last ones would hardly be chosen


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

    The first is sampled uniformly from the candidates; each further one is the candidate that is best with respect to
    all those chosen so far (Noroozi and Favaro, 2016):

    - `maxmin`: the largest minimum Hamming distance, ties broken by the largest mean distance;
    - `mean`: the largest mean Hamming distance. This is the paper's criterion, but it leaves pairs that are
      only one swap apart.

    Remaining ties go to the lexicographically first candidate. Up to nine parts all permutations are candidates; above
    that, a seeded pool of `pool_size` random ones (at least four times `count`). `include_identity` makes the identity
    a candidate; it does not force it into the set.

    Returns 0-based rows of shape (count, parts), in the order in which they were chosen.
    """
    available = _check_request(parts, count, criterion, seed, include_identity)
    rng = np.random.default_rng(seed)
    size = min(max(pool_size, POOL_FACTOR * count), available)
    # Sampling distinct permutations stalls once most of them are in the pool: then list them all instead.
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

    A single permutation has no pair; its distances are defined as `parts`, the maximum.
    """
    rows = np.asarray(permutations)
    if rows.ndim != 2 or 0 in rows.shape:
        raise UserError(f"a permutation set must have rows and columns, but its shape is {rows.shape}")
    count, parts = rows.shape
    if count == 1:
        return HammingStatistics(parts, float(parts), parts)
    columns = np.ascontiguousarray(rows.T, dtype=np.min_scalar_type(parts))
    # One row against all later ones at a time: memory stays linear in the number of rows.
    agreements = (_agreements(columns[:, i + 1 :], columns[:, i]) for i in range(count - 1))
    extremes_and_sums = [(int(a.min()), int(a.max()), int(a.sum(dtype=np.int64))) for a in agreements]
    fewest, most, sums = zip(*extremes_and_sums, strict=True)
    return HammingStatistics(parts - max(most), parts - sum(sums) / math.comb(count, 2), parts - min(fewest))


def save_permutations(path: str | Path, permutations: npt.ArrayLike) -> None:
    """Write a permutation set in the .npy format under exactly this file name; the folder must exist."""
    path = Path(path)
    rows = _validated(np.asarray(permutations), "the permutation set")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        # An open file, as np.save appends ".npy" to a name that lacks it.
        with path.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def load_permutations(path: str | Path) -> npt.NDArray[np.int64]:
    """Read a permutation set from a .npy file; a 1-based set, as some public ones are, is converted to 0-based."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            # Not np.load, which would also try zip archives and pickles.
            rows = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # a damaged header makes numpy raise almost anything, such as tokenize.TokenError
        raise UserError(
            f"{path} is not a readable .npy file of numbers: create it with unshuffle permutations"
        ) from error
    return _validated(rows, str(path))


def _check_request(parts: int, count: int, criterion: str, seed: int, include_identity: bool) -> int:
    """Raise a UserError for an impossible request; return the number of permutations to choose from."""
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


def _all_permutations(parts: int) -> IntArray:
    """All permutations in lexicographic order, as columns of an array (parts, parts!).

    They have the smallest type that holds them, as the search is bound by memory bandwidth.
    """
    columns: IntArray = np.zeros((1, 1), dtype=np.min_scalar_type(parts))
    for size in range(2, parts + 1):
        # Each first value is followed by all shorter permutations, renumbered to skip that value.
        blocks = [np.vstack([np.full_like(columns[:1], first), columns + (columns >= first)]) for first in range(size)]
        columns = np.hstack(blocks)
    return columns


def _random_permutations(parts: int, size: int, include_identity: bool, rng: np.random.Generator) -> IntArray:
    """`size` distinct random permutations in lexicographic order, as columns of an array (parts, size)."""
    identity = np.arange(parts, dtype=np.min_scalar_type(parts))
    rows = identity[:0].repeat(parts).reshape(0, parts)
    while len(rows) < size:
        sampled = rng.permuted(np.tile(identity, (size - len(rows), 1)), axis=1)
        rows = np.unique(np.vstack([rows, sampled]), axis=0)
        if not include_identity and np.array_equal(rows[0], identity):
            rows = rows[1:]
    return np.ascontiguousarray(rows.T)


def _choose(candidates: IntArray, count: int, criterion: str, first: int) -> npt.NDArray[np.intp]:
    """Indices of the greedily chosen candidates (columns).

    Works on agreements, the number of positions where two permutations are equal: the distance is `parts` minus the
    agreements, so the farthest candidate has the fewest, and integers tie exactly where float means might not.
    """
    parts, available = candidates.shape
    most = np.zeros(available, dtype=candidates.dtype)  # agreements with the nearest chosen permutation
    total = np.zeros(available, dtype=np.min_scalar_type(parts * count))  # agreements with all chosen permutations
    chosen = np.full(count, first, dtype=np.intp)
    for step in range(1, count):
        agreements = _agreements(candidates, candidates[:, chosen[step - 1]])
        total += agreements
        if criterion == "mean":
            total[chosen[:step]] = np.iinfo(total.dtype).max  # never chosen again
            chosen[step] = total.argmin()
        else:
            # A chosen permutation agrees with itself everywhere, so `most` alone rules it out.
            np.maximum(most, agreements, out=most)
            tied = np.flatnonzero(most == most.min())
            chosen[step] = tied[total[tied].argmin()]
    return chosen


def _agreements(columns: IntArray, permutation: IntArray) -> IntArray:
    """For each column, the number of positions where it equals the permutation."""
    agreements = np.zeros(columns.shape[1], dtype=columns.dtype)
    for position, value in zip(columns, permutation, strict=True):
        agreements += (position == value).view(np.uint8)  # as integers, or numpy would convert block by block
    return agreements


def _validated(rows: npt.NDArray[Any], name: str) -> npt.NDArray[np.int64]:
    """Return the rows as 0-based int64; raise a UserError if they are not distinct permutations."""
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise UserError(f"{name} must be a 2-D array of integers, not {rows.ndim}-D of {rows.dtype}")
    if rows.shape[0] < 1 or rows.shape[1] < 2:
        raise UserError(f"{name} must have at least 1 row and 2 columns, but its shape is {rows.shape}")
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if rows.min() == 1:
        rows = rows - 1
    parts = rows.shape[1]
    invalid = np.flatnonzero((np.sort(rows, axis=1) != np.arange(parts)).any(axis=1))
    if invalid.size:
        raise UserError(f"row {invalid[0]} of {name} is not a permutation of 0..{parts - 1} (or 1..{parts})")
    if len(np.unique(rows, axis=0)) < len(rows):
        raise UserError(f"{name} has duplicate rows")
    return rows
