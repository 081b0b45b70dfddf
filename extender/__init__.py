"""The service that kube-scheduler calls. It follows the cluster; ``packing`` makes the decisions."""
