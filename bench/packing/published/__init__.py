"""Published policies that only the comparison knows."""
