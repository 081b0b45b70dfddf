"""Which node and which GPUs a request gets: the default policy and what it is compared with."""
