"""Parts A and D of the paper's Figure 2: the validation, and the samplers that propose permutations."""
