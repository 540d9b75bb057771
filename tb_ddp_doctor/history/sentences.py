"""What happened in a job's hours, in sentences."""

from __future__ import annotations

import time
from typing import NamedTuple

from tb_ddp_doctor.history.events import Event
from tb_ddp_doctor.history.job import LoggedBy
from tb_ddp_doctor.history.summary import Summary
from tb_ddp_doctor.wording import capital, decimals, duration, money, percent, percents, ranks, size

#: Times of logs that have no clock begin with the job: none trains for three years.
_WITHOUT_CLOCK_S = 1e8
#: Goodput that varies by less between eighths of the job stayed.
_LEAST_TREND = 0.02


class Price(NamedTuple):
    """What a GPU costs an hour; the currency is "" where nobody named it."""

    gpu_hour: float
    currency: str = ""


def headline(summary: Summary) -> str:
    """The costliest event in one sentence, or that there is none."""
    costly = [event for event in summary.events if event.cost_s > 0]
    if not costly:
        return f"Steady: no change, period or drift. Goodput {percent(summary.account.goodput)}."
    share = percent(costly[0].cost_share)
    return f"{what(costly[0], summary)}: {share} of the job. Goodput {percent(summary.account.goodput)}."


def trend(summary: Summary) -> str:
    """How goodput went from the first to the last eighth of the job, "" where it stayed."""
    shares = summary.goodput_trend
    if not shares or max(shares) - min(shares) < _LEAST_TREND:
        return ""
    first, last = f"{percent(shares[0])} in the first eighth of the time", f"{percent(shares[-1])} in the last"
    is_inside = min(shares[0], shares[-1]) - min(shares) >= _LEAST_TREND
    return f"{first}{f', {percent(min(shares))} in the worst' if is_inside else ''}, {last}"


def sentence(event: Event, summary: Summary, price: Price | None) -> str:
    """An event: who, how much, when, and what it costs the whole job."""
    return f"{what(event, summary)}{beside(event)}: {cost(event, summary, price)}."


def beside(event: Event) -> str:
    """What changed with an event, where that was recorded: ", process memory grows with it: 38 MB an hour (rank 3)"."""
    changes = []
    hours = max((event.end_s - event.begin_s) / 3600, 1e-9)
    for one in event.together:
        change, rank = one.after - one.before, ranks([one.rank])
        if event.kind == "drift":
            grows, rate = "grows" if change > 0 else "falls", _amount(one.quantity, abs(change) / hours)
            changes.append(f"{one.quantity} {grows} with it: {rate} an hour ({rank})")
        else:
            levels = f"{_amount(one.quantity, one.before)} before, {_amount(one.quantity, one.after)} since"
            changes.append(f"{one.quantity} changes with it: {levels} ({rank})")
    if event.garbage_share is not None:
        changes.append(f"Python collects garbage in {percent(event.garbage_share)} of them")
    return "".join(f", {each}" for each in changes)


def _amount(quantity: str, value: float) -> str:
    """A value of a recorded quantity with its unit."""
    if quantity.endswith("memory"):
        return size(value)
    if quantity in ("loading time", "GPU time of a step"):
        return duration(value * 1000)
    unit = {"SM clock": "MHz", "power": "W"}.get(quantity, "°C")
    return f"{value:,.0f} {unit}"


def cost(event: Event, summary: Summary, price: Price | None = None) -> str:
    """What an event costs the whole job: "4.2 % of the job (3.9 to 4.5 %), 181.9 ms a step, 17.5 GPU-hours"."""
    share = f"{percent(abs(event.cost_share))} of the job{_range(event)}"
    if event.cost_s < 0:
        return f"{share} saved"
    per_step = duration(event.cost_s * 1000 / max(summary.steps, 1))
    if not summary.ranks:
        return f"{share}, {per_step} a step, {event.cost_s / 3600:,.1f} hours of the job"
    hours = event.cost_s / 3600 * summary.ranks
    paid = "" if price is None else f", {money(hours * price.gpu_hour, price.currency or 'in money')}"
    return f"{share}, {per_step} a step, {hours:,.1f} GPU-hours{paid}"


def _range(event: Event) -> str:
    """From where to where an event's share of the job lies in 8 of 10 jobs; "" where that is one figure."""
    if not event.cost_s:
        return ""
    least, most = sorted(max(seconds / event.cost_s, 0) * abs(event.cost_share) for seconds in event.range_s)
    return f" ({percents(least, most)})" if percent(least) != percent(most) else ""


def what(event: Event, summary: Summary) -> str:
    """Who became slower by how much, and when: "Node2 is 337.2 ms (7.7 % of a step) slower since step 8,858 (...)"."""
    is_all = event.level == "job" or len(event.ranks) == summary.ranks > 1
    who = "all ranks" if is_all else event.node if event.level == "node" and event.node else ""
    who = capital(who or ranks(event.ranks))
    plural = is_all or (event.level != "node" and len(event.ranks) > 1)
    added = f"{duration(abs(event.added_ms))} ({percent(abs(event.added_share))} of a step)"
    when = f"since step {event.first_step:,} ({clock(event.begin_s)})"
    if event.kind == "change":
        is_or_are, slower = "are" if plural else "is", "slower" if event.added_ms > 0 else "faster"
        has_end = (
            f" until step {event.last_step:,} ({clock(event.end_s)})" if event.last_step < summary.last_step else ""
        )
        return f"{who} {is_or_are} {added} {slower} {when}{has_end}"
    if event.kind == "drift":
        become, slower = "become" if plural else "becomes", "slower" if event.added_ms > 0 else "faster"
        an_hour = event.added_ms / max((event.end_s - event.begin_s) / 3600, 1e-9)
        return f"{who} {become} {slower} by {duration(abs(an_hour))} an hour, {added} in all"
    has = "have" if plural else "has"
    if event.kind == "period":
        return f"{who} {has} a long step every {event.every:,} steps, by {added}, {event.times:,} such steps in all"
    return f"{who} {has} {event.times:,} long steps, by {added}, {when}"


def read_from(log: LoggedBy) -> str:
    """Where the step times are from, and what cannot be seen in them."""
    means = f", means of {log.steps_a_line} steps each: shorter events do not show" if log.steps_a_line > 1 else ""
    who = " Ranks: Doctor(LOGDIR, history=True)."
    if log.slowest is not None:
        who = (
            f" {capital(ranks([log.slowest.rank]))} is the slowest in {log.slowest.reports:,} of {log.slowest.of:,} "
            f"straggler reports, {percent(log.slowest.slower_share)} slower than the fastest."
        )
    return f"Read from {log.path} ({log.program}){means}.{who}"


def clock(seconds: float) -> str:
    """When that was; of logs without a clock, how long after the job began."""
    if seconds < _WITHOUT_CLOCK_S:
        return f"{decimals(seconds / 3600, 1)} h after the start"
    return time.strftime("%b %d %H:%M", time.localtime(seconds))
