"""A model of another backend, such as OpenVINO, is refused in the same words by all that would cut it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss

import st_matryoshka2d as st
from st_matryoshka2d.losses import MultiSizeLoss
from tests.support.pipelines import TEXTS

STS = st.sts_task({"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": list(range(len(TEXTS)))})


class OVModelForFeatureExtraction:
    """Stands for optimum's class, which is no `nn.Module`: it has a config, and can be called."""

    def __init__(self, config: Any) -> None:
        self.config = config


@pytest.fixture
def exported(tiny: SentenceTransformer) -> SentenceTransformer:
    network = OVModelForFeatureExtraction(tiny[0].model.config)
    del tiny[0].model
    tiny[0].model = network
    return tiny


VERBS: dict[str, Callable[[Any], object]] = {
    "truncate": lambda model: st.truncate(model, num_layers=2),
    "align": lambda model: st.align(model, TEXTS),
    "align_into": lambda model: st.align_into(model, TEXTS, np.eye(len(TEXTS), dtype=np.float32)),
    "fit_queries": lambda model: st.fit_queries(model, TEXTS),
    "asymmetric": lambda model: st.asymmetric(model, 2),
    "asymmetric, an encoder": lambda model: st.asymmetric(model, model),
    "encode_sizes": lambda model: st.encode_sizes(model, TEXTS, ["2L-8d"]),
    "SizesEncoder": lambda model: st.SizesEncoder(model, ["2L-8d"]),
    "encode_to_parquet": lambda model: st.encode_to_parquet(model, TEXTS, "none", ["2L-8d"]),
    "evaluate": lambda model: st.evaluate(model, STS),
    "evaluate_truncations": lambda model: st.evaluate_truncations(model, STS),
    "GridEvaluator": lambda model: st.GridEvaluator(STS, sizes=["2L-8d"])(model),
    "coordinate_spread": lambda model: st.coordinate_spread(model, TEXTS),
    "benchmark_latency": lambda model: st.benchmark_latency(model, rounds=1),
    "MultiSizeLoss": lambda model: MultiSizeLoss(model, CoSENTLoss(model), ["2L-8d"]),
    "TruncatedTransformer": lambda model: st.TruncatedTransformer.from_transformer(model[0]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_model_of_another_backend_is_refused_in_words(verb: str, exported: SentenceTransformer) -> None:
    with pytest.raises(TypeError, match=r"^Only a .* PreTrainedModel can be cut, got OVModelForFeat.*backend='torch'"):
        VERBS[verb](exported)
