"""Searches for capacity plans: bounds, layouts and sets of moves, as linear programs over plain arrays."""
