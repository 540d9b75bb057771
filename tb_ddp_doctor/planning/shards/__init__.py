"""Parameters, gradients and optimizer states shared out among ranks in another way."""
