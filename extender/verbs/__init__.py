"""The verbs of kube-scheduler's ``extender/v1``: (state, arguments) -> result, without HTTP. Only ``bind``
has side effects: kube-scheduler repeats calls, and does not mark dry runs."""
