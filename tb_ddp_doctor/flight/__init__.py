"""Reading the dumps of PyTorch's Flight Recorder: which collectives each rank enqueued, and which of them completed."""
