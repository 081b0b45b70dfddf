"""Published policies for the comparison."""
