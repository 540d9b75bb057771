"""Rows of which a change removes some work: of all of their device time, or of single calls of operators in them."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.replay import native, native_library
from tb_ddp_doctor.replay.model import Removed
from tb_ddp_doctor.trace.model import Ints


def shortened(need: Ints, whole: Ints, recorded_ns: Ints, removed: Removed) -> Ints:
    """How long the device needs for each row of a schedule without what is removed, ns, shape (rows,).

    `recorded_ns` is how long it needed for each row, `need` what other parts of a change leave of that, and `whole` the
    same with what they take of single calls. A row of which they leave less gives back less, in proportion: its kernels
    are shorter by the same factor.
    """
    if native_library.is_available():
        return native.shorten(need, whole, recorded_ns, removed)
    return _with_numpy(need, whole, recorded_ns, removed)


def _with_numpy(need: Ints, whole: Ints, recorded_ns: Ints, removed: Removed) -> Ints:
    gone = np.zeros(len(need)) if removed.gone_ns is None else removed.gone_ns.astype(np.float64)
    if removed.share is not None:
        gone += removed.calls.of_share(removed.share)
    gone = np.rint(gone * np.minimum(whole / np.maximum(recorded_ns, 1), 1))
    shorter: Ints = need - np.clip(gone, 0, np.maximum(need, 0)).astype(np.int64)
    return shorter
