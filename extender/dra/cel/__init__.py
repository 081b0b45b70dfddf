"""The subset of CEL that device selectors use, evaluated exactly as in kube-scheduler."""
