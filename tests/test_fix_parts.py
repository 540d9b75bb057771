"""A fix is taken apart once, where it is said."""

from __future__ import annotations

import pytest

from tb_ddp_doctor.findings import FixParts

LEADS_OVER = "Move it out of the loop. Or do it less often. While it trains, on that host:"


@pytest.mark.parametrize(
    ("fix", "parts"),
    [
        ("", FixParts()),
        ("Use bf16.", FixParts("Use bf16.", "Use bf16.", "Use bf16.")),
        ("Set it, e.g. to 4. Then look.", FixParts("Set it, e.g. to 4.", *["Set it, e.g. to 4. Then look."] * 2)),
        (
            f"{LEADS_OVER}\n\npy-spy dump\n\ntop\n",
            FixParts(
                "Move it out of the loop.",
                LEADS_OVER,
                "Move it out of the loop. Or do it less often.",
                "py-spy dump\n\ntop",
            ),
        ),
    ],
)
def test_a_fix_has_its_first_sentence_advice_and_code(fix: str, parts: FixParts) -> None:
    assert FixParts.of(fix) == parts
