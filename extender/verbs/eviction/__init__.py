"""Evictions: which pods may go for a pod, what that costs, and the best node for it."""
