"""The paper's analyses of runs: numbers first, then a figure of them."""
