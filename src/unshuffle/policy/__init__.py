"""A and D: validation, and who proposes the permutations."""
