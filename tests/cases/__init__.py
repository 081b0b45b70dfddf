"""Situations of real clusters, and what is right for each (CONTRIBUTING.md, "A case")."""
