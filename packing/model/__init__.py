"""The objects to pack: requests, nodes, GPUs, MIG instances, NVLink islands."""
