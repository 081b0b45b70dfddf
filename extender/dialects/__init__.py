"""GPU requests of pods, and a module for the nodes and pods of each GPU-sharing system."""
