"""Searches for capacity plans, layouts and sets of moves, over plain arrays."""
