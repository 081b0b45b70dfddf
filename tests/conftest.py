"""Settings for all tests."""

from hypothesis import settings

# No deadline: the time of one example depends on what else the machine does.
settings.register_profile("stowage", deadline=None)
settings.load_profile("stowage")
