"""Plans of the same model on another mesh (`--mesh dp=16,tp=4,pp=4`)."""
