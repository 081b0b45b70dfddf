"""Published and simple policies to compare with."""
