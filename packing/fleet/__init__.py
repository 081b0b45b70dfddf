"""All nodes as arrays, their allocations, and the nodes on which a request fits."""
