"""The part of CEL that selectors of devices are written in, evaluated exactly as kube-scheduler does."""
