"""Settings for all tests."""

from hypothesis import settings

from extender.cli.kernel_cache import choose_cache

choose_cache()  # before a test imports numba

# No deadline: the time of one example depends on what else the machine does.
settings.register_profile("stowage", deadline=None)
settings.load_profile("stowage")
