"""Groups of permutations that are equally hard for the network as it is now: the policy's actions."""

import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import ThreadpoolController
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """A division of Ψ into |C| groups, the hardest (lowest median ratio) first, empty ones last."""

    members: Tensor
    """(|Ψ|,) the group of each permutation; empty when the groups are of pairs."""
    sizes: Tensor
    """(|C|,) |c_j| / |Ψ|."""
    medians: Tensor
    """(|C|,) median of the softmax ratios of a group's (ψ, x) pairs; 1, undecided, for an empty group."""

    @property
    def summary(self) -> Tensor:
        """ŝ of Eq. 10, (|C|, 2): sizes as shares of |Ψ|, and medians."""
        return torch.stack([self.sizes, self.medians], dim=1)


def group_permutations(state: Tensor, count: int, seed: int) -> Groups:
    """Cluster the rows of s, (|Ψ|, |X_val|), into `count` groups by k-means."""
    rows = state.double().numpy()
    labels = _cluster(rows, count, seed)
    found = [label for label in range(count) if (labels == label).any()]
    medians = {label: float(np.median(rows[labels == label])) for label in found}
    order = sorted(found, key=lambda label: medians[label])
    rank = np.zeros(count, dtype=np.int64)
    rank[order] = np.arange(len(order))
    members = torch.from_numpy(rank[labels])
    empty = count - len(order)
    return Groups(
        members=members,
        sizes=torch.bincount(members, minlength=count).float() / len(rows),
        medians=torch.tensor([medians[label] for label in order] + [1.0] * empty),
    )


def _cluster(rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    # one thread: with more, the order of the sums and so the last bits change from one call to the next
    with _thread_pools().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than groups: some stay empty
        labels: np.ndarray = KMeans(count, n_init=3, random_state=seed).fit_predict(rows)
    return labels


@lru_cache(maxsize=1)  # it looks through all loaded libraries, which takes as long as a clustering
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()
