"""GridEvaluator scores a model that trains with an adapter as its cuts with the adapter in their weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import pairwise_cos_sim

from st_matryoshka2d import GridEvaluator, Size
from tests.support.adapters import by_hand, lora
from tests.support.families import TEXTS, cut_by_hand
from tests.support.sts import LocalSTS
from tests.support.training import RECIPES, train


class OnePart(LocalSTS):
    """One split of one subset."""

    metadata = LocalSTS.metadata.model_copy(update={"eval_splits": ["test"], "eval_langs": ["eng-Latn"]})


# of mteb
@pytest.mark.filterwarnings("ignore:The fill_missing parameter is deprecated:DeprecationWarning")
def test_training_with_an_adapter_is_scored(
    tiny: SentenceTransformer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, task, sizes = copy.deepcopy(tiny), OnePart(), [Size(2, 8), Size(4, 32)]
    model.add_adapter(lora())
    evaluator = GridEvaluator(task, sizes, write_csv=False, primary_size="2L-8d")
    schedule = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.02}
    best = {"load_best_model_at_end": True, "metric_for_best_model": evaluator.primary_metric, "greater_is_better": True}
    train(model, RECIPES["Starbucks"](model), tmp_path, max_steps=2, evaluator=evaluator, **schedule, **best)
    assert "Could not load the best model" not in caplog.text
    (found,) = evaluator.history
    (subset,) = task.dataset.values()
    rows = subset["test"]
    plain = by_hand(tiny, model)
    assert abs(plain.encode(TEXTS) - tiny.encode(TEXTS)).max() > 0.01
    for size in sizes:
        with cut_by_hand(plain, size.num_layers):
            one, two = (plain.encode(rows[name])[:, : size.dim] for name in ("sentence1", "sentence2"))
        wanted = spearmanr(pairwise_cos_sim(one, two), rows["score"]).statistic
        name = f"STS13_{size.num_layers:02d}L_{size.dim:04d}d"
        assert found[name] == pytest.approx(wanted, abs=1e-3)
