"""Rules of eviction, and the cheapest pods to evict on a node."""
