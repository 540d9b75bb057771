"""The tab as one file: its own modules and style sheet, and the answers that the plugin's routes would give.

Modules cannot import each other from a disk, where each file is an origin of its own. So each becomes a data: URL in an
import map, under a name instead of its path. The page's own policy forbids all that is not in the file: neither a fault
in a module nor text from a trace makes it ask a server.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import logging
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import Diagnosis, Severity
from tb_ddp_doctor.plugin.analyses import summary
from tb_ddp_doctor.plugin.assets import assets
from tb_ddp_doctor.plugin.details import DETAILS
from tb_ddp_doctor.plugin.views import views
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.documentation import page as page_of

_log = logging.getLogger(__name__)

#: Choices of faults to fix whose outcome the file holds, for each run: all of those of six rules.
_MOST_CHOICES = 64
#: Bytes of the numbers behind one of the further views of a run: what takes more is left to the server.
_MOST_DETAIL = 250_000
#: Comparisons that a page holds: all pairs of three runs, both ways. Each takes some tens of kilobytes.
_MOST_PAIRS = 6
#: `from "./dom.js"`, `import "../dom.js"`, `import("./dom.js")`.
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*\(?\s*)["'](\.\.?/[\w./-]+\.js)["']""")
_NAME = "ddp-doctor/"
_ENTRY = f'import {{ show }} from "{_NAME}index.js"; show();'


def page(results: Sequence[Result], logdir: str) -> str:
    """All runs as one HTML file."""
    files = {route.lstrip("/"): path.read_text(encoding="utf-8") for route, (path, _) in assets().items()}
    style = f"\n{files['style.css']}"
    imports = msgspec.json.encode({"imports": _modules(files)}).decode()
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src data: '{_hash(imports)}' '{_hash(_ENTRY)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(f"Diagnosis of {', '.join(result.diagnosis.name for result in results)}")
    headlines = "".join(
        f"<h1>{html.escape(result.diagnosis.name)}</h1><p>{html.escape(result.diagnosis.headline)}</p>"
        for result in results
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
        f"<style>{style}</style>\n"
        f'<script type="importmap">{imports}</script>\n'
        f'<script type="application/json" id="ddp-doctor-answers">{_inert(_answers(results, logdir))}</script>\n'
        f'<script type="module">{_ENTRY}</script>\n'
        f"</head>\n<body>\n<noscript>{headlines}<p>The rest of this report needs JavaScript.</p></noscript>\n"
        "</body>\n</html>\n"
    )


def _modules(files: Mapping[str, str]) -> dict[str, str]:
    """The modules that index.js needs, by name, as data: URLs."""
    needed: dict[str, str] = {}
    left = ["index.js"]
    while left:
        name = left.pop()
        if name in needed or name not in files:
            continue
        # Text, import, path, text, import, path ... text.
        pieces = _IMPORT.split(files[name])
        pieces[2::3] = [posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in pieces[2::3]]
        left += pieces[2::3]
        pieces[2::3] = [f'"{_NAME}{module}"' for module in pieces[2::3]]
        needed[name] = f"data:text/javascript;base64,{base64.b64encode(''.join(pieces).encode()).decode()}"
    return {f"{_NAME}{name}": needed[name] for name in sorted(needed)}


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _inert(value: Any) -> str:
    """JSON that an HTML parser finds no tag in."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _answers(results: Sequence[Result], logdir: str) -> dict[str, Any]:
    """What the routes of `plugin` would answer, by route."""
    answers: dict[str, Any] = {
        "viewers": {"perfetto": None, "frames_perfetto_dev": False},
        "runs": {"state": "ready", "error": None, "logdir": logdir, "runs": [_listed(one) for one in results]},
    }
    pairs = list(itertools.permutations(results, 2))
    for before, after in pairs if len(pairs) <= _MOST_PAIRS else ():
        route = f"compare?before={before.diagnosis.name}&after={after.diagnosis.name}"
        answers[route] = {"state": "ready", "comparison": compare(before, after)}
    for result in results:
        name = result.diagnosis.name
        for finding in result.diagnosis.findings:
            documented = page_of(CATALOGUE[finding.rule])
            answers[f"rule?rule={finding.rule}"] = {"summary": documented.summary, "sections": documented.sections}
        answers[f"run?run={name}"] = {"state": "ready", "diagnosis": result.diagnosis, "views": _views(result)}
        answers.update({f"detail?run={name}&of={of}": detail for of, detail in _details(result)})
        for chosen in itertools.islice(_choices(result.diagnosis), _MOST_CHOICES):
            answers[f"whatif?run={name}&without={','.join(sorted(chosen))}"] = result.savings.without(chosen)
    return answers


def _listed(result: Result) -> dict[str, Any]:
    diagnosis = result.diagnosis
    return {
        "name": diagnosis.name,
        "state": "ready",
        "progress": {"done": len(diagnosis.ranks), "total": len(diagnosis.ranks)},
        "error": None,
        "arriving": len(result.unfinished),
        "deleted": 0,
        **summary(diagnosis),
    }


def _views(result: Result) -> dict[str, Any] | None:
    try:
        # Wherever the file goes, the traces are elsewhere: there is nobody to ask for a slice.
        return {**views(result), "from_digests": True}
    except Exception:  # without its pictures the page still says what is wrong
        _log.exception("The pictures of run %r could not be made", result.diagnosis.name)
        return None


def _details(result: Result) -> Iterator[tuple[str, msgspec.Raw]]:
    for of, make in DETAILS.items():
        try:
            encoded = msgspec.json.encode(make(result))
        except Exception:
            _log.exception("The view %s of run %r could not be made", of, result.diagnosis.name)
            continue
        if len(encoded) <= _MOST_DETAIL:
            yield of, msgspec.Raw(encoded)


def _choices(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    """Sets of rules whose faults may be fixed: first what the page shows at once, then all, none, one, two ..."""
    saving = [finding for finding in diagnosis.findings if finding.alone_ms > 0]
    rules = tuple(dict.fromkeys(finding.rule for finding in saving))
    serious = {finding.rule for finding in saving if finding.severity != Severity.INFO.label}
    yield tuple(rule for rule in rules if rule in serious)
    yield rules
    for count in range(len(rules)):
        yield from itertools.combinations(rules, count)


def write(results: Sequence[Result], logdir: str, path: Path) -> int:
    """Write the report; returns its size in bytes. Raises ValueError for a path inside of the log directory."""
    if path.resolve().is_relative_to(Path(logdir).resolve()):
        raise ValueError(f"Nothing is written into the log directory; {path} is inside of it.")
    content = page(results, logdir).encode("utf-8", errors="replace")
    path.write_bytes(content)
    return len(content)
