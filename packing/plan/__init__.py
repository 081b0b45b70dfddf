"""Searches for MIG layouts, start times and sets of moves."""
