"""The ways of asking for a part of a GPU, one module for each sharing system."""
