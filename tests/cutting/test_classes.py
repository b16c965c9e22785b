"""Every class of sentence-transformers is cut exactly, keeps its class and settings, and refuses what has no meaning."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from torch import Tensor

from st_matryoshka2d import align, evaluate, load, truncate
from st_matryoshka2d.model.backbone import find_backbone
from tests.support import classes, families
from tests.support.classes import CLASSES, outputs
from tests.support.families import TEXTS
from tests.support.quick import quick

pytestmark = pytest.mark.filterwarnings("ignore::st_matryoshka2d.errors.DataWarning")

# T5's classifier stands on an encoder and a decoder
RERANKERS = [name for name in families.CONFIGS | families.UNNAMED if name not in ("t5-encoder", "mt5-encoder")]


def by_hand(model: Any, kept: list[int]) -> Tensor:
    """Return what a model makes whose other blocks do nothing."""
    cut = copy.deepcopy(model)
    cut[0].model = families.without_blocks(model[0].model, find_backbone(model[0].model).blocks, kept)
    return outputs(cut)


def assert_exact(model: Any, folder: Path) -> None:
    """Cut, saved and loaded, and loaded in part: all equal the cut by hand; the model itself stays."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_pretrained(str(folder / "whole"))
    for num_layers in (1, 3):
        wanted = by_hand(model, families.ENDS[num_layers])
        cut = truncate(model, num_layers=num_layers)
        cut.save_pretrained(str(folder / str(num_layers)))
        ways = {
            "cut": cut,
            "saved": type(model)(str(folder / str(num_layers)), device="cpu"),
            "loaded": load(folder / "whole", num_layers=num_layers, device="cpu"),
        }
        for way, small in ways.items():
            assert type(small) is type(model), way
            assert small.config.num_hidden_layers == num_layers
            torch.testing.assert_close(outputs(small), wanted, atol=2e-5, rtol=1e-5, msg=f"{way} at {num_layers}")
        assert float((wanted - outputs(model)).abs().max()) > 1e-4, "layers must matter"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", quick(CLASSES, "reranker", "splade"))
def test_a_cut_of_every_class_is_the_model_without_the_other_blocks(name: str, tmp_path: Path) -> None:
    assert_exact(CLASSES[name](tmp_path / "weights"), tmp_path)


@pytest.mark.parametrize("name", quick(RERANKERS, "modernbert", "qwen3"))
def test_a_reranker_of_every_family_is_cut_exactly(name: str, tmp_path: Path) -> None:
    assert_exact(classes.reranker(tmp_path / "weights", name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert", "distilbert", "roberta", "xlm-roberta", "mpnet", "electra", "deberta-v2"])
def test_a_sparse_encoder_of_every_family_is_cut_exactly(name: str, tmp_path: Path) -> None:
    assert_exact(classes.splade(tmp_path / "weights", name), tmp_path)


@pytest.mark.slow
def test_a_classifier_above_an_encoder_and_a_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be cut in depth exactly"):
        truncate(classes.reranker(tmp_path, "t5-encoder"), num_layers=2)


def test_a_cut_keeps_the_settings_of_its_class(tmp_path: Path) -> None:
    model = classes.reranker(tmp_path / "reranker")
    model.activation_fn, model.prompts = torch.nn.Tanh(), {"query": "new "}
    cut = truncate(model, "3L")
    assert isinstance(cut.activation_fn, torch.nn.Tanh)
    assert cut.prompts == model.prompts
    assert cut.model_card_data.model_name == "local/reranker-3L"
    assert cut.config.matryoshka_cut == {"of": "4L-1d", "model": None, "size": "3L-1d", "layers": [1, 3, 4]}
    # servers of embeddings read these
    assert not {"is_matryoshka", "matryoshka_dimensions"} & vars(cut.config).keys()
    assert [each["corpus_id"] for each in cut.rank(TEXTS[0], TEXTS)]
    sparse = truncate(classes.sparse_features(tmp_path / "sparse"), num_layers=2)
    assert sparse.max_active_dims == 6
    assert int((sparse.encode(TEXTS).to_dense() != 0).sum(1).max()) <= 6


@pytest.mark.parametrize("name", quick(CLASSES, "splade"))
def test_texts_of_a_smaller_vocabulary_stay_as_they_were(name: str, tmp_path: Path) -> None:
    model = CLASSES[name](tmp_path / "weights")
    small = truncate(model, vocabulary=[*TEXTS, "under", "quickly"] * 4)
    small.save_pretrained(str(tmp_path / "small"))
    reread = type(model)(str(tmp_path / "small"), device="cpu")
    rows = small[0].model.get_input_embeddings().num_embeddings
    assert rows < len(families.VOCABULARY)
    wanted, found = outputs(model), outputs(small)
    if name == "splade":  # a dim is a token
        names = small.tokenizer.convert_ids_to_tokens(range(rows))
        wanted = wanted[:, model.tokenizer.convert_tokens_to_ids(names)]
    assert torch.equal(found, wanted)
    assert torch.equal(outputs(reread), wanted)


@pytest.mark.parametrize("name", CLASSES)
def test_dims_are_refused_in_words(name: str, tmp_path: Path) -> None:
    model = CLASSES[name](tmp_path / "weights")
    with pytest.raises(ValueError, match=r"dim=8: .*Leave dim out, and pass num_layers alone"):
        truncate(model, num_layers=2, dim=8)
    with pytest.raises(ValueError, match=r"dim=8: "):
        load(tmp_path / "weights", num_layers=2, dim=8) if name == "reranker" else truncate(model, dim=8)
    with pytest.raises(TypeError, match=f"Expected a SentenceTransformer, got {type(model).__name__}"):
        align(model, TEXTS)


def test_a_plain_checkpoint_with_a_classifier_is_a_reranker(tmp_path: Path) -> None:
    model = classes.reranker(tmp_path / "weights")
    small = load(tmp_path / "weights", "2L", device="cpu")
    assert type(small) is CrossEncoder
    torch.testing.assert_close(outputs(small), outputs(truncate(model, num_layers=2)))


def test_a_reranker_without_its_classifier_is_refused(tmp_path: Path) -> None:
    classes.reranker(tmp_path / "weights").save_pretrained(str(tmp_path / "whole"))
    families.build(families.CONFIGS["bert"]()).save_pretrained(tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").replace(tmp_path / "whole" / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks weights of BertForSequenceClassification.*classifier"):
        load(tmp_path / "whole", num_layers=2)


def test_sides_that_are_no_network_are_refused(tmp_path: Path) -> None:
    model = classes.splade(tmp_path)
    table = SparseStaticEmbedding(tokenizer=model.tokenizer)
    router = Router.for_query_document([table], [model[0], SpladePooling()])
    both = SparseEncoder(modules=[router], device="cpu")
    with pytest.raises(ValueError, match="starts with SparseStaticEmbedding, which has no layers"):
        truncate(both, num_layers=2)


def test_a_router_of_two_networks_is_cut_on_both_sides(tmp_path: Path) -> None:
    one, other = (classes.splade(tmp_path / name) for name in ("one", "other"))
    both = SparseEncoder(modules=[Router.for_query_document(list(one), list(other))], device="cpu")
    cut = truncate(both, num_layers=2)
    wanted = truncate(one, num_layers=2).encode(TEXTS).to_dense()
    torch.testing.assert_close(cut.encode_query(TEXTS).to_dense(), wanted)


def test_scores_that_are_read_from_token_ids_keep_their_vocabulary(tmp_path: Path) -> None:
    import transformers as hf
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    folder = classes.saved(families.CONFIGS["qwen3"](), tmp_path / "weights", hf.AutoModelForCausalLM)
    transformer = Transformer(folder, transformer_task="text-generation")
    model = CrossEncoder(modules=[transformer, LogitScore(true_token_id=6, false_token_id=7)], device="cpu")
    assert float((by_hand(model, [0, 3]) - outputs(truncate(model, num_layers=2))).abs().max()) < 1e-5
    with pytest.raises(ValueError, match="LogitScore of this model names tokens by their ids"):
        truncate(model, vocabulary=TEXTS * 4)


def test_what_reads_embeddings_alone_says_so(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got SparseEncoder"):
        evaluate(classes.splade(tmp_path), "STSBenchmark")
