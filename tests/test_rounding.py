"""A number is rounded in one place, and to the same digits in the terminal, in Markdown and in the tab."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from tb_ddp_doctor import wording

ROOT = Path(__file__).parents[1]
FRONTEND = ROOT / "frontend" / "src"
#: Why these round themselves.
EXEMPT = {
    "wording.py": "it is the place",
    "findings.py": "`wording` imports it",
    "notebook_html.py": "it is below `wording`, and writes lengths of CSS",
    "report/calibration.py": "coordinates of SVG",
}
VALUES = (
    0.0,
    0.0004,
    0.004,
    0.125,
    0.5,
    0.95,
    0.9949,
    1.005,
    1.25,
    2.5,
    9.995,
    10.05,
    62.5,
    99.95,
    100.5,
    1234.5,
    12_345.678,
)


def formatted(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines of f-strings that round a number, with how they do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            spec = ast.unparse(node.format_spec)[2:-1]
            if re.search(r"^\+?\.(?:\d|\{.*\})f$", spec):
                yield node.lineno, spec


def test_numbers_become_text_in_one_place() -> None:
    package = ROOT / "tb_ddp_doctor"
    found = {
        str(path.relative_to(package)): list(formatted(ast.parse(path.read_text(encoding="utf-8"))))
        for path in package.rglob("*.py")
    }
    rounding = {name for name, lines in found.items() if lines}
    assert {name: found[name] for name in rounding - set(EXEMPT)} == {}
    assert set(EXEMPT) - rounding == set()


def test_numbers_become_text_in_one_place_of_the_frontend() -> None:
    found = {path.name for path in FRONTEND.rglob("*.js") if ".toFixed(" in path.read_text(encoding="utf-8")}
    assert found == {"format.js"}


def test_the_tab_rounds_as_the_terminal_does() -> None:
    module = json.dumps((FRONTEND / "format.js").as_uri())
    script = f"""import({module}).then((it) => {{
      const all = {json.dumps(VALUES)};
      const said = all.map((x) => [it.ms(x), it.percent(x / 1000), it.decimals(x, 2),
        it.decimals(-x - 1, 1), it.range(x / 2, x), it.decimals(it.remainder(x, [x / 3, x / 7]), it.sumDigits(x))]);
      console.log(JSON.stringify(said).replaceAll("\\u00a0", " "));
    }});"""
    node, _ = compute_driver_executable()
    ran = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stdout) == [
        [
            wording.duration(x),
            wording.percent(x / 1000),
            wording.decimals(x, 2),
            wording.decimals(-x - 1, 1),
            f"{wording.interval(x / 2, x)} ms",
            wording.decimals(wording.remainder(x, [x / 3, x / 7]), wording.sum_digits(x)),
        ]
        for x in VALUES
    ]


def test_parts_of_short_sums_keep_their_size() -> None:
    """Of a step of 5.65 ms the floor, 0.175 ms, was shown as 0.10."""
    assert [wording.remainder(5.65, [3.705, 1.684, 0.0856]), wording.remainder(47.93, [10.61, 0.27])] == pytest.approx(
        [0.17, 37.0]
    )
    assert [wording.sum_digits(total) for total in (0.22, 5.6, 182.9)] == [3, 2, 1]


def test_ends_of_intervals_have_the_digits_of_times() -> None:
    assert [wording.interval(*ends) for ends in ((0.021, 0.043), (0.5, 0.99), (0.4, 1.2), (3.1, 6.2))] == [
        "0.02 to 0.04",
        "0.50 to 0.99",
        "0.4 to 1.2",
        "3 to 6",
    ]


def test_sizes_of_measured_messages_are_powers_of_two() -> None:
    assert [wording.binary_size(1 << power) for power in (3, 10, 16, 26, 30)] == [
        "8 bytes",
        "1 KiB",
        "64 KiB",
        "64 MiB",
        "1 GiB",
    ]


def test_sizes_are_made_into_text_by_wording_alone() -> None:
    of_size = re.compile(r"/ 1e[369]\b[^}\n]*\} [kKMG]B\b(?!/s)|for unit, \w+ in \(+\"G")
    package = Path(wording.__file__).parent
    sources = [path for path in package.rglob("*.py") if path.name != "wording.py"]
    assert not [(path.name, found) for path in sources for found in of_size.findall(path.read_text())]


def test_figures_have_no_exponent() -> None:
    assert [wording.figures(value, 3) for value in (0.1094, 5.78, 998.2, 1307.4)] == ["0.109", "5.78", "998", "1,307"]
