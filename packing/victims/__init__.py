"""Who may evict whom, and the cheapest pods to evict on a node."""
