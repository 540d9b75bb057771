"""Numbers, lists and names as text: the one place that says how times, shares and sizes are rounded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tb_ddp_doctor.findings import JobKind, MeshTable, Network, RateGain, Rates

#: How times are rounded: from so many ms on, the unit in ms, its name, and digits. The frontend has these tables too,
#: in `rounding.js`.
TIMES = ((10_000.0, 1000.0, "s", 2), (0.995, 1.0, "ms", 1), (0.01, 1.0, "ms", 2), (0.0005, 0.001, "µs", 0))
#: The ends of intervals that are so wide have no digits, ms.
WIDE_MS = 3.0
#: Intervals that end below it have two digits, as times have there, ms.
FINE_MS = 0.995
#: Sums from so many ms on, and their digits: of 5.6 ms a part of 0.17 is not to be seen as 0.1.
SUMS = ((10.0, 1), (1.0, 2), (0.0, 3))
#: Shares from here on are whole percents; those below this one are not told apart.
WHOLE_SHARE, LEAST_SHARE = 0.1, 0.001
#: Rates below this have digits.
FEW = 100
#: Halves of surrogate pairs, which names of files have that are no UTF-8.
_NO_TEXT = re.compile("[\ud800-\udfff]")
#: Lists longer than this are cut.
_LISTED = 6
#: Runs of more numbers than this are a range.
_SHORT_RUN = 2


def encodable(text: str) -> str:
    """Text from a trace without halves of surrogate pairs, which JSON cannot have."""
    return _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def decimals(value: float, digits: int, sign: str = "") -> str:
    """A number with as many digits after its point, "1,206.8"; "+" as `sign` is put before increases.

    A half is rounded to the even digit: `decimals` of the tab's `format.js` does the same.
    """
    return f"{value:{sign},.{digits}f}"


def whole(value: float) -> str:
    """A whole number: "12,345"."""
    return f"{value:,.0f}"


def figures(value: float, digits: int) -> str:
    """A number with as many figures, and all of those before its point: "0.109", "5.78", "1,307"."""
    text = f"{value:.{digits}g}"
    return text if "e+" not in text else whole(value)


def ms(ns: float) -> str:
    """A time in ns: "1,206.8 ms" from 1 ms on, "0.12 ms" below, "12 µs" below 10 µs, "12.35 s" from 10 s on."""
    return duration(ns / 1e6)


def duration(value_ms: float) -> str:
    """A time in ms, as `ms` has it."""
    for least, unit_ms, unit, digits in TIMES:
        if abs(value_ms) >= least:
            return f"{decimals(value_ms / unit_ms, digits)} {unit}"
    return "0 ms"


def remainder(total_ms: float, parts_ms: Iterable[float]) -> float:
    """What the largest part of a sum is shown as, ms: what the total and the other parts leave of it as they are shown.

    Rounded one by one, 47.05 + 10.61 + 0.27 = 57.93 reads 47.1 + 10.6 + 0.3 = 57.9; the first is shown as 47.0.
    `remainder` of the tab's `format.js` does the same.
    """
    digits = sum_digits(total_ms)
    return round(total_ms, digits) - sum(round(part, digits) for part in parts_ms)


def sum_digits(total_ms: float) -> int:
    """With how many digits a sum in ms and its parts are shown."""
    return next((digits for least, digits in SUMS if total_ms >= least), SUMS[-1][1])


def kind(job: JobKind) -> str:
    """A kind of job: "training", "inference server", or "unknown kind of job"."""
    return "unknown kind of job" if job == "unknown" else job


def interval(least_ms: float, most_ms: float) -> str:
    """An interval in ms, without its unit: "118 to 131" where it is 3 ms wide or more, "3.1 to 4.2", "0.21 to 0.34"."""
    digits = 0 if most_ms - least_ms >= WIDE_MS else 1 if most_ms >= FINE_MS else 2
    return f"{decimals(least_ms, digits)} to {decimals(most_ms, digits)}"


def us(ns: float) -> str:
    """A short time: "12 µs" from 10 µs on, "1.2 µs" below; from 1 ms on as `ms` has it."""
    value = ns / 1e3
    return ms(ns) if abs(value) >= 1000 else f"{decimals(value, 0 if abs(value) >= 10 else 1)} µs"


def percent(share: float) -> str:
    """A share of one: "67 %", "3.2 %" below ten, "<0.1 %" below a tenth."""
    if 0 < share < LEAST_SHARE:
        return f"<{LEAST_SHARE * 100:.1f} %"
    return f"{decimals(share * 100, 0 if share >= WHOLE_SHARE or not share else 1)} %"


def percents(least: float, most: float) -> str:
    """A range of shares of one: "12 to 15 %", "3.1 to 4.2 %" where the larger is below ten."""
    digits = 0 if most >= WHOLE_SHARE else 1
    return f"{decimals(least * 100, digits)} to {decimals(most * 100, digits)} %"


def size(count: float) -> str:
    """A number of bytes, GB = 1e9 bytes: "4.3 GB", "530 MB", "1.6 MB" below ten, "12 kB", "8 bytes"."""
    if count >= 1e9:
        return f"{decimals(count / 1e9, 1)} GB"
    if count >= 1e6:
        return f"{count / 1e6:.{0 if count >= 1e7 else 1}f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count:.0f} bytes"


def binary_size(count: float) -> str:
    """The size of a measured message, mostly a power of two, in bytes: "1 GiB", "64 MiB", "4 KiB", "8 bytes"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:g} {unit}"
    return f"{count:g} bytes"


def gigabytes_per_second(rate: float) -> str:
    """A rate in bytes per second, GB = 1e9 bytes."""
    return f"{rate / 1e9:.1f} GB/s"


def memory_rate(rate: float) -> str:
    """A rate in bytes per second that memory is read and written at: "1,843 GB/s"."""
    return f"{whole(rate / 1e9)} GB/s"


def flop_rate(rate: float) -> str:
    """A rate in FLOP per second: "412.5 TFLOPS"."""
    return f"{decimals(rate / 1e12, 1)} TFLOPS"


def megabytes(count: float, sign: str = "") -> str:
    """A number of bytes in MB, for a column of a table that says so: "1,206.8"."""
    return decimals(count / 1e6, 1, sign)


def rates(job: Rates | None) -> str:
    """Tokens and samples a second and GPU, money and energy a day; "" for none.

    "41,920 tokens/s per GPU, 384.00 EUR a day, up to 67 kWh a day"
    """
    return _rates(job, "", job.currency) if job else ""


def gain(fix: RateGain, currency: str) -> str:
    """The same of what a fix brings: "+1,200 tokens/s per GPU, 12.00 EUR a day"."""
    return _rates(fix, "+", currency)


def money(amount: float, currency: str) -> str:
    """An amount of money: "1,384.00 EUR", without its currency where that is ""."""
    return f"{amount:,.2f}{currency and f' {currency}'}"


def _rates(values: Rates | RateGain, sign: str, currency: str) -> str:
    parts = [
        f"{sign}{value:,.{0 if value >= FEW else 2}f} {name}/s per GPU"
        for name, value in (("tokens", values.tokens_per_second), ("samples", values.samples_per_second))
        if value is not None
    ]
    parts += [f"{money(values.money_per_day, currency)} a day"] if values.money_per_day is not None else []
    energy = values.energy_kwh_per_day
    parts += [f"up to {energy:,.{0 if energy >= FEW else 1}f} kWh a day"] if energy is not None else []
    return ", ".join(parts)


def listing(items: Sequence[object]) -> str:
    """Items as in "1 and 2", "1, 2 and 3" or "1, 2, 3, 4, 5, 6 and 12 more"; "" for none."""
    words = [str(item) for item in items]
    if len(words) > _LISTED + 1:
        return f"{', '.join(words[:_LISTED])} and {len(words) - _LISTED} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers, ascending, with runs of three and more as ranges: "1 and 2", "0, 2-4 and 7"."""
    return listing(short_ranges(numbers))


def short_ranges(numbers: Sequence[int]) -> list[str]:
    """Whole numbers, ascending, each by itself or, of three and more in a row, as a range: ["0", "2-4", "7"]."""
    items: list[str] = []
    for run in runs(numbers):
        items += [f"{run[0]}-{run[-1]}"] if len(run) > _SHORT_RUN else map(str, run)
    return items


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """Whole numbers, ascending, with those in a row together: [[0], [2, 3, 4], [7]]."""
    together: list[list[int]] = []
    for number in numbers:
        if together and number == together[-1][-1] + 1:
            together[-1].append(number)
        else:
            together.append([number])
    return together


def ranks(numbers: Sequence[int]) -> str:
    """Ranks as in "rank 1", "ranks 1 and 2" or "ranks 616-623"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {ranges(sorted(numbers))}"


def steps(numbers: Sequence[int]) -> str:
    """Steps as in "step 4", "steps 4 and 5" or "steps 4-9"."""
    return f"step{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def steps_seen(seen: int, of: int) -> str:
    """A count as in "3 of 3 steps"."""
    return f"{seen} of {of} step{'s' if of != 1 else ''}"


def period(places: Sequence[int]) -> str:
    """How often something comes, given the places of its steps, a sentence after a space; "" if none shows."""
    apart = {later - earlier for earlier, later in pairwise(places)}
    if len(places) > 2 and len(apart) == 1 and apart != {1}:
        return f" It comes every {apart.pop()} steps."
    return " A longer capture would show how often it comes." if len(places) == 1 else ""


def capital(text: str) -> str:
    """The text with its first letter large, the others as they are."""
    return text[:1].upper() + text[1:]


def network(seen: Network | None) -> str:
    """What NCCL's logs say of its links, a sentence and a space; "" without logs."""
    if seen is None or not seen.transports:
        return ""
    over = f" over {listing(seen.interfaces)}" if seen.interfaces else ""
    channels = f", in {seen.channels} channels" if seen.channels else ""
    if not uses_sockets(seen):
        return f"By its log, NCCL uses {listing(list(seen.transports))}{over}{channels}. "
    if seen.settings.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return f"By its log, NCCL uses sockets{over}{channels}, since NCCL_IB_DISABLE is set. "
    lost = f": it could not use {listing(seen.unavailable)}" if seen.unavailable else ""
    return f"By its log, NCCL fell back to sockets{over}{channels}{lost}. "


def dimensions(mesh: MeshTable) -> Iterator[str]:
    """What each dimension takes of the step, and why it is taken for that dimension where nothing names it."""
    for one in mesh.dimensions:
        if one.transfer_share is not None and one.share is not None and one.wait_share is not None:
            hidden = max(one.transfer_share - one.share, 0.0)
            yield (
                f"{one.name} takes {percent(one.transfer_share)} of the step: {percent(one.share)} exposed, "
                f"{percent(hidden)} beside compute; and {percent(one.wait_share)} straggler wait."
            )
        if one.inferred:
            yield f"{one.name} is inferred: {one.inferred}."
        yield from one.advice


def uses_sockets(seen: Network | None) -> bool:
    """Whether NCCL moves data between nodes through the kernel's TCP, the slowest way that it has."""
    return seen is not None and "NET/Socket" in seen.transports
