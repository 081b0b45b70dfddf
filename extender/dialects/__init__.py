"""Requests of pods for GPUs, and a module with the nodes and pods of each system that divides GPUs."""
