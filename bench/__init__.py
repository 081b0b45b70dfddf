"""Benchmarks: latency, slowest requests, start, pods per second, packing."""
