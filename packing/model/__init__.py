"""What is packed: requests, nodes, GPUs, MIG instances, NVLink islands."""
