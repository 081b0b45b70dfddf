"""Objects of ``resource.k8s.io`` (device claims, classes and slices), and how they are read."""
