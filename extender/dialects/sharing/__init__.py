"""Requests for parts of GPUs, and claims of pods that have them: one module for each sharing system."""
