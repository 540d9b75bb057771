"""Say how much is kept of what was read, and remove it."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.commands.output import complain
from tb_ddp_doctor.report.escape import printable
from tb_ddp_doctor.storage.cache_directory import default_directory
from tb_ddp_doctor.wording import size


def run(options: argparse.Namespace, errors: Console) -> int:
    """Print the size, or clear the cache; 2 where some of it cannot be removed."""
    directory = options.cache or default_directory()
    cache = Cache(directory)
    count, kept_bytes = cache.size()
    entries = f"{count:,} {'entry' if count == 1 else 'entries'}, {size(kept_bytes)}"
    if not options.clear:
        sys.stdout.write(printable(f"{directory}: {entries}") + "\n")
        return 0
    remaining = cache.clear()
    if remaining:
        complain(errors, f"{directory}: {remaining:,} of {entries} could not be removed: are they of another user?")
        return 2
    sys.stdout.write(printable(f"{directory}: removed {entries}") + "\n")
    return 0
