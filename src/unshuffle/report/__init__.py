"""The report of runs: an HTML page, tables and pictures."""
