"""How modules import each other; the layers are a contract in pyproject.toml."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


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
