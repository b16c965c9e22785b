"""What sentence-transformers keeps under private names: each test fails if a release keeps it elsewhere."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.losses import (
    AdaptiveLayerLoss,
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)

from st_matryoshka2d._hosts import sentence_transformers as hosts
from tests.support.families import TEXTS


def batch(model: SentenceTransformer) -> dict[str, Any]:
    return model.preprocess(TEXTS)


def test_a_module_of_ours_loads_without_trust(tiny: SentenceTransformer, tmp_path: Path) -> None:
    class Ours(Transformer):
        pass

    Ours.__module__ = "elsewhere"
    model = copy.deepcopy(tiny)
    model[0].__class__ = Ours
    model.save_pretrained(str(tmp_path))
    loaded = hosts.load_with_classes(SentenceTransformer, str(tmp_path), {"elsewhere.Ours": Ours}, device="cpu")
    assert type(loaded[0]) is Ours
    assert (loaded.encode(TEXTS) == tiny.encode(TEXTS)).all()


@pytest.mark.parametrize(("features", "name"), [({"task": "query"}, "query"), ({}, "document")])
def test_the_route_of_a_batch(tiny: SentenceTransformer, features: dict[str, Any], name: str) -> None:
    ways = {"query": list(tiny.children()), "document": list(copy.deepcopy(tiny).children())}
    router = Router(ways, default_route="document")
    assert hosts.route_name(router, features) == name


def test_the_text_of_a_loaded_card_is_written_again_until_it_is_dropped(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path / "first"))
    card = tmp_path / "first/README.md"
    card.write_text(card.read_text(encoding="utf-8") + "\nA sentence of mine.\n", encoding="utf-8")
    loaded = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    assert "A sentence of mine." in str(hosts.card_text(loaded))
    hosts.drop_card_text(loaded)
    assert hosts.card_text(loaded) is None
    loaded.save_pretrained(str(tmp_path / "second"))
    assert "A sentence of mine." not in (tmp_path / "second/README.md").read_text(encoding="utf-8")


def test_a_card_calls_a_model_without_an_id_so(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path))
    assert f'SentenceTransformer("{hosts.UNNAMED}")' in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_single_process_infers_by_itself() -> None:
    with hosts.shared_out(lambda texts: torch.tensor([len(text) for text in texts])) as together:
        assert together is not None
        assert together(["one", "four"]).tolist() == [3, 4]


def test_a_model_shares_out_texts_only_where_it_was_told_to(tiny: SentenceTransformer) -> None:
    assert not hosts.shares_out_texts(tiny)
    assert hasattr(tiny, "_distributed_inference"), "sentence-transformers keeps it under another name"


def test_adaptive_layer_loss_is_known_while_it_runs(tiny: SentenceTransformer) -> None:
    seen = []

    class Watching(MultipleNegativesRankingLoss):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(hosts.is_cut_by_adaptive_layer_loss(tiny[0]))
            return super().forward(*args, **kwargs)

    loss = AdaptiveLayerLoss(tiny, Watching(tiny))
    assert not hosts.is_cut_by_adaptive_layer_loss(tiny[0])
    loss([batch(tiny), batch(tiny)], None)
    assert any(seen)


def test_encode_sorts_by_tokens(tiny: SentenceTransformer) -> None:
    texts = ["a cat", "internationalisation", "rain rain rain rain rain"]
    read: list[int] = []

    class Sorted(hosts.SortedByTokens):
        def forward(self, input: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
            read.append(int(input["attention_mask"].sum()))
            return super().forward(input, **kwargs)

    model = Sorted(modules=list(tiny.children()), device="cpu")
    model.encode(texts, batch_size=1)
    tokens = sorted((int(model.preprocess([text])["attention_mask"].sum()) for text in texts), reverse=True)
    assert read == tokens


@pytest.mark.parametrize(("texts", "tokens"), [(2, None), (100, 12)])
def test_mini_batches_are_those_of_a_cached_loss(tiny: SentenceTransformer, texts: int, tokens: int | None) -> None:
    column = batch(tiny)
    loss = CachedMultipleNegativesRankingLoss(tiny, mini_batch_size=texts, mini_batch_num_tokens=tokens)
    wanted: list[torch.Tensor] = []
    hook = tiny[0].register_forward_pre_hook(lambda _, args: wanted.append(args[0]["input_ids"]))
    loss([dict(column), dict(column)], None)
    hook.remove()
    parts = [part["input_ids"] for part in hosts.mini_batches(dict(column), texts, tokens)]
    assert len(parts) > 1
    for found, given in zip(parts, wanted[: len(parts)], strict=True):
        assert torch.equal(found, given)


def test_a_part_of_a_column_is_embedded_by_a_function(tiny: SentenceTransformer) -> None:
    column = batch(tiny)

    def embed(features: dict[str, Any]) -> dict[str, Any]:
        return {"sentence_embedding": tiny(features)["sentence_embedding"] * 2}

    loss = CachedMultipleNegativesRankingLoss(tiny)
    one, _ = loss.embed_minibatch(dict(column), 1, 3, with_grad=False, copy_random_state=False)
    two, _ = hosts.embed_mini_batch(embed, dict(column), 1, 3, with_grad=False, copy_random_state=False)
    assert torch.equal(two, one * 2)
