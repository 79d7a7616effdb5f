"""The paper's analyses: numbers first, then a figure of them."""
