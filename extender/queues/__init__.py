"""Queues and gangs: which queue and which gang a pod belongs to, and who may be evicted for whom."""
