"""Predictions for parameters, gradients and optimizer states that are sharded in another way."""
