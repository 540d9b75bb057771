"""Reading on a Dask cluster: its workers, near the storage, read the traces, and only digests travel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

#: How often a file is tried again whose worker was lost.
_RETRIES = 3
_CONNECT_S = 10


class SchedulerError(ValueError):
    """The cluster cannot be used. Its text is a sentence for users."""


@contextmanager
def executor(address: str | None) -> Iterator[Executor | None]:
    """The executor of the Dask scheduler at `address`; None without an address.

    The workers must have tb-ddp-doctor installed and see the traces under the same paths. Raises SchedulerError.
    """
    if not address:
        yield None
        return
    # Of an address without a port Dask's client waits for 20 s, and prints a traceback.
    if not re.search(r":\d+$|^inproc://", address):
        raise SchedulerError(
            f"--scheduler takes the address of a Dask scheduler with its port, as tcp://host:8786, not {address!r}."
        )
    try:
        from distributed import Client
    except ImportError:
        raise SchedulerError("--scheduler needs Dask: pip install 'tb-ddp-doctor[dask]'.") from None
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise SchedulerError(
            f"--scheduler: no Dask scheduler answers at {address}: is it running, and does a firewall let this machine "
            f"reach it? ({error})"
        ) from None
    with client, client.get_executor(retries=_RETRIES, pure=False) as pool:  # type: ignore[no-untyped-call]
        yield pool
