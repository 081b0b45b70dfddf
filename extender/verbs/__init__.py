"""The verbs of ``extender/v1``: (state, arguments) -> result. No HTTP, no globals, and, ``bind`` apart, no
side effects: kube-scheduler asks any number of times and marks no dry run."""
