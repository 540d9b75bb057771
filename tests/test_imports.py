"""How modules import each other, how large functions are, and what classes are named; the layers are a contract."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[1] / "tb_ddp_doctor"
#: A longer function, without its docstring, or one with more names of its own, is to be taken apart.
MOST_LINES, MOST_LOCALS = 60, 25
#: Modules of `facts`.
MOST_FACTS = 24
#: Frameworks look for a callback by this name, each in its own module of `capture`.
SAME_NAME = {"DoctorCallback"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def imports_in_order(graph: grimp.ImportGraph) -> list[str]:
    """All modules, each after those that it imports. Raises CycleError for modules that import each other."""
    return list(
        TopologicalSorter(
            {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
        ).static_order()
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("tb_ddp_doctor", cache_dir=None)
    order = imports_in_order(graph)
    assert order.index("tb_ddp_doctor.job.model") < order.index("tb_ddp_doctor.replay.replay")


def test_a_circle_is_found() -> None:
    graph = grimp.ImportGraph()
    graph.add_import(importer="a", imported="b")
    graph.add_import(importer="b", imported="a")
    with pytest.raises(CycleError):
        imports_in_order(graph)


def lines_of(function: _Function) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0]
    is_documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = first.end_lineno - first.lineno + 1 if is_documented and first.end_lineno else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def locals_of(function: _Function) -> set[str]:
    """The arguments of a function and the names that it assigns, without those of functions within it."""
    args = function.args
    names = {one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    inner = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.ClassDef)

    def assigned(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id
            if not isinstance(child, inner):
                yield from assigned(child)

    return names | set(assigned(function))


def larger(source: str) -> list[str]:
    """The names of the functions that are too large."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, _Function) and (lines_of(node) > MOST_LINES or len(locals_of(node)) > MOST_LOCALS)
    ]


def test_functions_are_small() -> None:
    assert {
        f"{path.relative_to(PACKAGE)} {name}"
        for path in PACKAGE.rglob("*.py")
        for name in larger(path.read_text(encoding="utf-8"))
    } == set()


def test_a_large_function_is_seen() -> None:
    assert larger("def f():\n" + "    x = 1\n" * 61) == ["f"]
    assert larger("def f():\n    " + " = ".join(f"x{i}" for i in range(26)) + " = 0\n") == ["f"]
    assert larger('def f():\n    """' + "\n" * 80 + '"""\n') == []


def classes(source: str) -> set[str]:
    """The public classes of a module, without those that extend a class of their own name."""
    return {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and not any(isinstance(base, ast.Attribute) and base.attr == node.name for base in node.bases)
    }


def test_the_name_of_a_class_stands_for_one_thing() -> None:
    named = Counter(name for path in PACKAGE.rglob("*.py") for name in classes(path.read_text(encoding="utf-8")))
    assert {name for name, times in named.items() if times > 1} == SAME_NAME


def test_a_class_that_adds_to_one_of_its_name_is_the_same_thing() -> None:
    assert classes("class Report(findings.Report): ...\nclass Run: ...\nclass _Own: ...\n") == {"Run"}


def test_facts_has_few_modules() -> None:
    """What is known of a job without other facts is in `job`, and what follows for a plan in `planning`."""
    assert len([*(PACKAGE / "facts").glob("*.py")]) <= MOST_FACTS
