"""Dynamic Resource Allocation (``resource.k8s.io/v1``): predicts which devices kube-scheduler's own allocator
will give to the claims of a pod on each node, so that nodes can be scored by what is left.

Pure: records in, records out; no clock, no I/O. kube-scheduler alone allocates.
"""
