"""What runs have to tell: the ablation table, and the paper's analyses, numbers first, then a figure of them."""
