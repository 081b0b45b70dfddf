"""What all tests share."""

from hypothesis import settings

from extender.cli.kernel_cache import choose_cache

choose_cache()  # before a test imports numba

# How long one example takes says more about the machine's other work than about the code.
settings.register_profile("stowage", deadline=None)
settings.load_profile("stowage")
