"""Names of kernels as they are shown: short, and told apart where several share a short one."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TEMPLATE = re.compile(r"[<(]")
#: Letters of a kernel's name, as many as a line has room for, and how many of these are its last ones: compiled kernels
#: and those of libraries differ in their number or tile at the end.
_MOST_LETTERS = 60
_LAST_LETTERS = 16
#: And of what: a name of megabytes, which a file may have, is as short after its first letters.
_LOOKED_AT = 4096
#: In a template's arguments: 64u is 64, and deep_gemm::GemmType is GemmType.
_SUFFIX = re.compile(r"\b(\d+)(?:u|l|ul|ull)\b", re.IGNORECASE)
_NAMESPACE = re.compile(r"\b\w+::")
_ARGUMENT_LETTERS = 100


def short(name: str) -> str:
    """A kernel's name without its template's and call's arguments, and not longer than a line takes."""
    plain = _TEMPLATE.split(_plain(name), maxsplit=1)[0].strip() or name[:_LOOKED_AT]
    if len(plain) <= _MOST_LETTERS:
        return plain
    return f"{plain[: _MOST_LETTERS - _LAST_LETTERS]}...{plain[-_LAST_LETTERS:]}"


def _plain(name: str) -> str:
    return name[:_LOOKED_AT].removeprefix("void ").replace("(anonymous namespace)::", "")


def distinguished(names: Sequence[str]) -> list[str]:
    """Kernels' short names. Of those that share one, with the template's arguments in which they differ.

    Such as "deep_gemm::fp8_gemm_kernel<7168, .., 64>" beside "deep_gemm::fp8_gemm_kernel<7168, .., 128>".
    """
    named = [(short(name), _template_arguments(name)) for name in names]
    sharing: dict[str, set[tuple[str, ...]]] = {}
    for name, arguments in named:
        sharing.setdefault(name, set()).add(arguments)
    return [name + _differing(arguments, sharing[name]) for name, arguments in named]


def _differing(mine: tuple[str, ...], all_of_name: set[tuple[str, ...]]) -> str:
    """A template's arguments in which kernels of one name differ, "<7168, .., 64>"; "" where there are none."""
    differs = [len({other[i : i + 1] for other in all_of_name}) > 1 for i in range(len(mine))]
    parts = [part if shows else ".." for part, shows in zip(mine, differs, strict=True)]
    parts = [part for i, part in enumerate(parts) if part != ".." or parts[i - 1 : i] != [".."]]
    return f"<{', '.join(parts)[:_ARGUMENT_LETTERS]}>" if any(differs) else ""


def _template_arguments(name: str) -> tuple[str, ...]:
    """The arguments of a name's first template, without the suffixes of numbers and the namespaces of types."""
    plain = _plain(name)
    opening = _TEMPLATE.search(plain)
    if not opening or opening[0] != "<":
        return ()
    depth, arguments = 0, [""]
    for letter in plain[opening.start() :]:
        depth += (letter in "<(") - (letter in ">)")
        if depth == 0:
            break
        if letter == "," and depth == 1:
            arguments.append("")
        else:
            arguments[-1] += letter
    arguments[0] = arguments[0][1:]
    return tuple(_NAMESPACE.sub("", _SUFFIX.sub(r"\1", argument.strip())) for argument in arguments)
