"""`python -m unshuffle`."""

from unshuffle.cli import main

main()
