"""What the doctor itself says in a slice: what it is, what it lacks, and where the evidence lies."""

from __future__ import annotations

import msgspec

from tb_ddp_doctor.slices import event_text
from tb_ddp_doctor.slices.model import Slice


class PlacedLabel(msgspec.Struct, frozen=True):
    """A label, in words."""

    name: str
    start_ns: int
    end_ns: int
    args: dict[str, str]


def placed(part: Slice, left_out: str) -> list[list[PlacedLabel]]:
    """Labels by row, so that none overlaps another: what the slice is, then the evidence."""
    about = {"what": event_text.about(part), **({"left_out": left_out} if left_out else {})}
    name = f"slice of {event_text.label(part.run)}" + (" (shortest events left out)" if left_out else "")
    rows = [[PlacedLabel(name, part.start_ns, part.end_ns, about)]]
    for label in sorted(part.labels, key=lambda label: (label.start_ns, -label.end_ns)):
        what = event_text.label(label.what)
        text = PlacedLabel(
            event_text.label(f"rank {label.rank}: {what}"),
            label.start_ns,
            label.end_ns,
            {
                "rule": label.title,
                "rank": str(label.rank),
                "what": what,
                **({"source": event_text.label(label.source)} if label.source else {}),
            },
        )
        row = next((row for row in rows[1:] if row[-1].end_ns <= text.start_ns), None)
        if row is None:
            rows.append([text])
        else:
            row.append(text)
    return rows
