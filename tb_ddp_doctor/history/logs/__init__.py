"""Step times in what other programs log anyway: read where no `Doctor(history=True)` recorded any."""
