"""The live page: runs as they train, search by similarity and puzzles, in a local browser."""
