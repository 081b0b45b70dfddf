"""Victims: the cheapest set of pods of one node after whose eviction a request fits there."""
