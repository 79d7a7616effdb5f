"""B: where samples come from and how they are cut, coloured and shuffled."""
