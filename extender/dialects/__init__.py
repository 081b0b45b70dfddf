"""What pods request of GPUs, and a module for each system that divides GPUs: its nodes and its pods."""
