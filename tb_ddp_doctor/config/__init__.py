"""`ddp-doctor.toml`: thresholds, what a step does, prices and a calibration, of a project or beside traces."""
