"""What torch.compile says of itself: the logs of TORCH_TRACE, which tlparse reads."""
