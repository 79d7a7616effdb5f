"""`unshuffle permutations`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from unshuffle.cli.parsing import parse, write_json
from unshuffle.files import check_new_file
from unshuffle.options import to_dict
from unshuffle.permutations import Criterion


@dataclass(frozen=True)
class PermutationsCommand:
    """Choose a diverse set of permutations and write it as .npy."""

    out: Path
    """The .npy file to write."""
    parts: Annotated[int, Ge(2)] = 9
    """Tiles or frames of a sample: 9 for a 3 x 3 grid."""
    count: Annotated[int, Ge(1)] = 1000
    """Number of permutations, |Ψ|; at most the factorial of --parts, less the identity."""
    criterion: Criterion = "maxmin"
    """maxmin: maximise the minimum Hamming distance; mean: maximise the mean distance, as the paper states."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the first permutation, and of the candidates if there are more than 9 parts."""
    include_identity: bool = False
    """Allow the identity, which leaves the sample unshuffled, in the set."""
    json: Path | None = None
    """Write the minimum, mean and maximum Hamming distance to this JSON file."""


def main(args: Sequence[str]) -> int:
    """Choose, write and print the distances."""
    command = parse(PermutationsCommand, "permutations", args)
    from unshuffle.permutations import hamming_statistics, permutation_set, save_permutations

    out = command.out.expanduser()
    check_new_file(out, "--out")
    chosen = permutation_set(
        command.parts,
        command.count,
        criterion=command.criterion,
        seed=command.seed,
        include_identity=command.include_identity,
    )
    save_permutations(out, chosen)
    distances = hamming_statistics(chosen)
    print(
        f"{len(chosen)} permutations of {command.parts} parts in {out}; Hamming distance: "
        f"minimum {distances.minimum}, mean {distances.mean:.3f}, maximum {distances.maximum}"
    )
    write_json(command.json, "permutations", command.criterion, to_dict(command), to_dict(distances))
    return 0
