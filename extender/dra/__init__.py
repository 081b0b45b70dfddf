"""Dynamic Resource Allocation (``resource.k8s.io/v1``): predicts the devices that kube-scheduler's allocator
will allocate to the claims of a pod on each node, to score nodes by the remaining devices.

Pure: records in, records out; no clock, no I/O. Only kube-scheduler allocates.
"""
