"""Several processes and repeated runs give bit-identical grids."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import GridResult, Size
from tests.support import labels, search
from tests.support.sts import LocalSTS, quiet
from tests.support.task_types import assert_grid_is_mteb, marks

pytestmark = [*marks, pytest.mark.slow]

KINDS = [labels.LocalClassification, labels.LocalMultilabel, labels.LocalClustering, LocalSTS, search.LocalRetrieval]
SIZES = [Size(2, 8), Size(4, 32), Size(1, 21)]


def assert_identical(one: GridResult, other: GridResult) -> None:
    pd.testing.assert_frame_equal(one.to_frame(), other.to_frame(), check_exact=True)


def made() -> list[Any]:
    return [kind() for kind in KINDS]


def test_two_processes_match_one(tiny: SentenceTransformer) -> None:
    alone = quiet(tiny, made(), sizes=SIZES)
    assert_identical(alone, quiet(tiny, made(), sizes=SIZES, n_jobs=2))
    for kind in KINDS:
        assert_grid_is_mteb(alone.at(tasks=kind.metadata.name), tiny, kind, SIZES)


def test_two_processes_and_several_precisions(tiny: SentenceTransformer) -> None:
    wanted: dict[str, Any] = {"sizes": SIZES, "precisions": ["float32", "int8", "binary"]}
    alone = quiet(tiny, [labels.BinaryClassification(), search.FewResults()], **wanted)
    assert_identical(alone, quiet(tiny, [labels.BinaryClassification(), search.FewResults()], n_jobs=2, **wanted))


def test_the_same_task_objects_once_more(tiny: SentenceTransformer) -> None:
    tasks = made()
    once = quiet(tiny, tasks, sizes=SIZES[:2])
    assert_identical(once, quiet(tiny, tasks, sizes=SIZES[:2]))
    assert_identical(once, quiet(tiny, made(), sizes=SIZES[:2]))


def test_task_scores_do_not_depend_on_other_tasks(tiny: SentenceTransformer) -> None:
    together = quiet(tiny, made(), sizes=SIZES[:2])
    for kind in reversed(KINDS):
        alone = quiet(tiny, kind(), sizes=SIZES[:2])
        frame = together.at(tasks=kind.metadata.name).to_frame().reset_index(drop=True)
        pd.testing.assert_frame_equal(alone.to_frame(), frame, check_exact=True)
