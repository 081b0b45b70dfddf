"""Dynamic Resource Allocation (``resource.k8s.io/v1``): devices that drivers publish in ResourceSlices, the
claims that pods bring, and which device kube-scheduler's own allocator will take.

Nobody but that allocator chooses; what it will choose is foreseen here, so that nodes can be told apart by
what is left. Pure: records in, records out; no clock, no I/O.
"""
