"""The image: its steps executed in a clean root, since a container engine is not always at hand."""
