"""Two small jobs to look at before one has traces of one's own: each trained on four GPUs with a fault built in."""

from pathlib import Path

#: Their log directory.
FOLDER = Path(__file__).parent / "logs"
#: A rank that sleeps in each step, and a DataLoader without workers.
JOBS = ("straggler_cpu", "zero_workers")
