"""The verbs of Volcano's extender plugin: each is a function of the session, which has the state, and the
arguments."""
