"""Parts A and D of the paper's Figure 2: the validation, and the samplers that propose permutations."""

from collections.abc import Sequence

from unshuffle.config import PolicyConfig
from unshuffle.lazy import LazyClass, find_entry
from unshuffle.policy.reinforce import ErrorHistory
from unshuffle.policy.sampler import Sampler

SAMPLERS = {
    "uniform": LazyClass("unshuffle.policy", "uniform", "Uniform", "Every permutation is equally likely."),
    "reinforce": LazyClass("unshuffle.policy", "reinforce", "Reinforce", "The paper's policy, trained by REINFORCE."),
    "rollouts": LazyClass("unshuffle.policy", "rollouts", "Rollouts", "Compare the groups by short training rollouts."),
    "exp3": LazyClass("unshuffle.policy", "exp3", "Exp3", "A bandit over the groups."),
    "hard-first": LazyClass("unshuffle.policy", "ranked", "Ranked", "Prefer hard groups, by a fixed rule."),
    "easy-first": LazyClass("unshuffle.policy", "ranked", "Ranked", "Prefer easy groups, by a fixed rule."),
}


def build_sampler(config: PolicyConfig, num_permutations: int, seed: int, lr_changes: Sequence[int] = ()) -> Sampler:
    """Return the sampler that the config names.

    `lr_changes` are the iterations at which the learning rate changes: errors before and after are not compared.
    """
    kind = find_entry(config.sampler, SAMPLERS, "sampler").load()
    arguments = (config, num_permutations, seed, ErrorHistory(lr_changes))
    sampler: Sampler = kind(num_permutations) if config.sampler == "uniform" else kind(*arguments)
    return sampler
