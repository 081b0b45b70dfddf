"""What pods request, whichever way they ask for GPUs, and what bound pods say they have."""
