"""What Stowage costs: latency, tails, memory, and pods per second beside a bare kube-scheduler."""
