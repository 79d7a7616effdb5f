"""The reliability campaign: kills, faults, damaged and hostile files. `make soak` runs it; see `__main__`."""
