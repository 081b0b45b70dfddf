"""Situations of real clusters, and what is right for each: see CONTRIBUTING.md, "A report becomes a case"."""
