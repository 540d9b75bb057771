"""Plays the recorded steps of all ranks again, with a change, to say what it would save; see README.md."""
