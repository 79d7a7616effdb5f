"""Ablations: arms × seeds, each trained and evaluated."""
