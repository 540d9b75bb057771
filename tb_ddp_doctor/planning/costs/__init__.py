"""Cost models: how long messages, collectives, kernels and batches take under other conditions."""
