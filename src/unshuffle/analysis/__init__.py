"""Comparisons of runs: the ablation table and the paper's analyses."""
