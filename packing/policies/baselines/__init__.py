"""Published and simple policies, for comparison."""
