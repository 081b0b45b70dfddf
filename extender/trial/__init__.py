"""Trial placements on a copy of a cluster, and the searches for moves and MIG layouts."""
