"""Objects of the Kubernetes API as Stowage needs them, and how they are read."""
