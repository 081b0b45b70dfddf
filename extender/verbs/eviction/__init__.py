"""Evictions: the pods that may be evicted for a pod, their cost, and the best node."""
