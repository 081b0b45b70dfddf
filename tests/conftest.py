"""What all tests share."""

from hypothesis import settings

# How long one example takes says more about the machine's other work than about the code.
settings.register_profile("stowage", deadline=None)
settings.load_profile("stowage")
