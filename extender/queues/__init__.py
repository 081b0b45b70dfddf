"""Queues and gangs: the queue and the gang of a pod, and the rules for evicting pods in favor of others."""
