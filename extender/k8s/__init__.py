"""Records of Kubernetes objects, and the parsers of their manifests."""
