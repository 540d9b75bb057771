"""One number for one thing: all views of random jobs are drawn, and what stands in two places is compared."""

from __future__ import annotations

import random
import re
from itertools import combinations
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from random_jobs import FaultyJob, Work
from tab import DEMO_LOGS
from traces import write

from tb_ddp_doctor import cli, engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.view.details import DETAILS

COLLECT = Path(__file__).with_name("tab_numbers.js").read_text()
UNNAMED = Path(__file__).with_name("tab_quantities.js").read_text()
JOBS = 4
#: Recorded ones beside the drawn ones: with opportunities, and with two costs in the verdict's account.
DEMO = ("healthy", "zero_workers")
#: What one place rounds, another may round the other way; ms for each unit.
UNITS = {"ms": 1.0, "s": 1000.0, "µs": 0.001, "%": 1.0, "": 1.0}
#: Keys that name a thing of one step, as "busy time of rank 1, step 2".
OF_STEP = re.compile(r"^(.+), step \d+$")


def random_job(seed: int) -> FaultyJob:
    """2 to 4 ranks, 3 steps; often one rank is late, sometimes in one step only."""
    pick = random.Random(seed)
    world, steps = pick.randint(2, 4), 3
    late, steady = pick.randrange(world), pick.random() < 0.7
    odd = pick.randrange(steps)

    def work(rank: int, step: int) -> Work:
        slow = rank == late and (steady or step == odd)
        stall = pick.randint(20, 60) if slow else 0
        return Work(pick.randint(6, 12), stall, pick.randint(10, 20), pick.randint(16, 30))

    return FaultyJob(
        tuple(tuple(work(rank, step) for step in range(steps)) for rank in range(world)),
        tuple(pick.randint(4, 12) for _ in range(steps)),
    )


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    for seed in range(JOBS):
        write(folder / f"job{seed}", random_job(seed).drawing)
    for name in DEMO:
        (folder / name).symlink_to(DEMO_LOGS / name)
    return folder


def value(text: str) -> tuple[float, float]:
    """A number and half of its last digit, in ms where it is a time."""
    found = re.fullmatch(r"(<?)([\d,]+)(?:\.(\d+))? ?(\D*)", text)
    assert found, text
    below, whole, digits, unit = found.groups()
    scale = UNITS[unit]
    half = 0.5 * 10.0 ** -len(digits or "") * scale
    number = float(f"{whole.replace(',', '')}.{digits or 0}") * scale
    return (0.0, number) if below else (number, half)


def disagreements(numbers: dict[str, list[list[str]]]) -> list[str]:
    """Places that say different things of one thing; and means over steps that are none."""
    wrong = []
    for key, places in numbers.items():
        if key == "checks passed":
            wrong += [f"{key}: {places}"] * (len({said for _, said in places}) > 1)
            continue
        for (one, first), (other, second) in combinations(places, 2):
            (a, half_a), (b, half_b) = value(first), value(second)
            if abs(a - b) > half_a + half_b + 1e-9:
                wrong.append(f"{key}: {first} ({one}), {second} ({other})")
    of_steps: dict[str, dict[str, float]] = {}
    for key, places in numbers.items():
        if found := OF_STEP.match(key):
            of_steps.setdefault(found[1], {})[key] = value(min(places, key=lambda place: value(place[1])[1])[1])[0]
    for name, each in of_steps.items():
        mean = sum(each.values()) / len(each)
        for place, said in numbers.get(name, ()):
            number, half = value(said)
            if abs(number - mean) > half + 0.06:
                wrong.append(f"{name}: {said} ({place}), mean over steps {mean:.3f}")
    return wrong


def test_what_stands_in_two_places_is_one_number(page: Page, logdir: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(logdir), "--no-cache", "--html", str(report)]) == 0
    page.goto(report.as_uri())
    for name in [*(f"job{seed}" for seed in range(JOBS)), *DEMO]:
        page.locator("button.run", has_text=name).click()
        expect(page.locator(".facts b")).to_have_text(name)
        numbers = page.evaluate(COLLECT)
        assert disagreements(numbers) == [], name
        twice = [key for key, places in numbers.items() if len({place for place, _ in places}) > 1]
        assert len(twice) > 30, "numbers are read from their places"
        if name in DEMO:
            assert page.evaluate(UNNAMED) == [], (
                "each figure has a quantity, or a row, column or sentence that names it"
            )


def test_the_overlap_of_ranks_is_that_of_the_command(logdir: Path) -> None:
    # A recorded job's command says that of the rank that arrives last, and the tab that of each rank.
    for run in (run for run in discover(logdir) if run.name not in DEMO):
        result = engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
        (traffic,) = result.diagnosis.communication
        told = DETAILS["ranks"](result)
        assert sum(told["hidden_ms"]) / sum(told["moving_ms"]) == pytest.approx(traffic.hidden_share, abs=0.005)


def test_a_question_mark_defines_a_figure_and_leads_to_its_cell(page: Page, logdir: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert cli.main(["diagnose", str(logdir / "zero_workers"), "--no-cache", "--html", str(report)]) == 0
    page.goto(report.as_uri())
    help_ = page.locator(".tiles .tip").first
    help_.hover()
    expect(page.locator(".tip-text")).to_contain_text("Its cell: Ranks & steps, Ranks; in the JSON step_ms.")
    help_.click()
    expect(page.locator(".view.ranks")).to_be_visible()
