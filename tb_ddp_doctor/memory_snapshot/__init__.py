"""Beside `trace`: snapshots of torch.cuda.memory, as `_dump_snapshot` writes them; nothing in a file can run."""
