"""Text from a trace, made harmless where it is shown. All of it is untrusted: names of kernels, ranks, nodes, runs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

#: What marks words up, and what makes a block of a line that begins with it.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]|~$])")
_BLOCK = re.compile(r"^(\d*)([#+\-=]|(?<=\d)[.)](?=\s|$))")
_BACKTICKS = re.compile(r"`+")
#: What GitHub and others make a link, a mention or a reference of wherever it stands: after these letters they look on.
_LINK = re.compile(r"@|#(?=\d)|:(?=//)|(?i:\bwww)(?=\.)|(?i:\bmailto|\bxmpp)(?=:)|(?i:\bGH-)(?=\d)")
#: What JSON may hold as it is, and a terminal would still obey: DEL and C1, marks that turn the direction of text.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def printable(text: str) -> str:
    """One line without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def printable_lines(text: str) -> str:
    """The same of some lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: Any) -> bytes:
    """JSON to print: the same to whoever reads it as JSON, and nothing that a terminal would obey."""
    return _not_obeyed(msgspec.json.format(msgspec.json.encode(value)))


def printable_json_line(value: Any) -> bytes:
    """The same in one line."""
    return _not_obeyed(msgspec.json.encode(value))


def _not_obeyed(json: bytes) -> bytes:
    return _OBEYED.sub(lambda letter: f"\\u{ord(letter[0]):04x}", json.decode()).encode() + b"\n"


def markdown(text: str) -> str:
    """A sentence as one line of Markdown: what stands between backticks is code, all else is only text."""
    shown = "".join(f"<code>{_marked(piece)}</code>" if is_code else _marked(piece) for piece, is_code in _pieces(text))
    return _BLOCK.sub(r"\1\\\2", shown)


def markup(text: str) -> str:
    """The same where Markdown takes the line for HTML."""
    pieces = ((_unlinked(html.escape(piece, quote=False)), is_code) for piece, is_code in _pieces(text))
    return "".join(f"<code>{piece}</code>" if is_code else piece for piece, is_code in pieces)


def code_block(text: str) -> str:
    """Code as a block of Markdown that nothing in it ends."""
    fence = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    return f"{fence}\n{printable_lines(text)}\n{fence}"


def table(heads: Sequence[str], rules: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; `rules` are what stands below the heads, "--:" above numbers."""
    lines = [heads, rules, *([markdown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def folded(summary: str, body: str) -> str:
    """Markdown that shows one line until it is opened."""
    return f"<details><summary>{markup(summary)}</summary>\n\n{body}\n\n</details>"


def _pieces(text: str) -> list[tuple[str, bool]]:
    """The line, cut at its backticks, and which pieces are code. A backtick without a partner is a letter."""
    pieces = printable(" ".join(text.split())).split("`")
    if len(pieces) % 2 == 0:
        pieces[-2:] = ["`".join(pieces[-2:])]
    return [(piece, i % 2 == 1) for i, piece in enumerate(pieces) if piece]


def _marked(text: str) -> str:
    return _unlinked(_MARKDOWN.sub(r"\\\1", html.escape(text, quote=False)))


def _unlinked(text: str) -> str:
    """Nobody is called, and nothing is linked, by a name in a trace: an empty comment comes between."""
    return _LINK.sub(r"\g<0><!-- -->", text)
