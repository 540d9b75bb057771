"""Rows of which a change removes some of their device time."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.trace.model import Ints


def shortened(need: Ints, whole: Ints, recorded_ns: Ints, gone_ns: Ints) -> Ints:
    """How long the device needs for each row of a schedule without what is removed of it, ns, shape (rows,).

    `recorded_ns` is how long it needed for each row, `need` what other parts of a change leave of that, and `whole` the
    same with what they take of single calls. A row of which they leave less gives back less, in proportion: its kernels
    are shorter by the same factor.
    """
    if whole is not recorded_ns:
        gone_ns = np.rint(gone_ns * np.minimum(whole / np.maximum(recorded_ns, 1), 1)).astype(np.int64)
    return need - np.clip(gone_ns, 0, np.maximum(need, 0))
