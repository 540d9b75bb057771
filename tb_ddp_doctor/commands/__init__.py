"""What each command of `ddp-doctor` does, a module each, named as the command: `run` returns the exit status."""
