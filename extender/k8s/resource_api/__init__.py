"""ResourceSlice, DeviceClass and ResourceClaim of ``resource.k8s.io``, and their parsers."""
