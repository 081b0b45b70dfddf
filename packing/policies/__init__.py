"""The policies: the cost of a placement on each node, and the GPUs that it takes there."""
