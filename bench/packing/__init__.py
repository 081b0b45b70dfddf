"""Research on packing: the comparison with published policies, and the tools that only it needs."""
