"""What a node's sharing system registers about its GPUs, one module for each system."""
