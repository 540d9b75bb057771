"""What messages, collectives, kernels and batches would take elsewhere."""
