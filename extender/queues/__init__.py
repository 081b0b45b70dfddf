"""Queues and gangs: the queue and the gang of a pod, and which pods may be evicted for which."""
