"""Packing research: the comparison with published policies, and its tools."""
