"""A cut is a plain model that shares the memory of the full model."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, WeightedLayerPooling

from st_matryoshka2d import Size, encode_sizes, load, sizes_ladder, truncate
from st_matryoshka2d.losses import StarbucksLoss
from tests.support import families
from tests.support.families import TEXTS


def snapshot(model: SentenceTransformer) -> dict[str, object]:
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "config": model.config.to_dict(),
        "modes": [module.training for module in model.modules()],
        "settings": (model.truncate_dim, model.max_seq_length, dict(model.prompts), model.tokenizer.padding_side),
        "embeddings": model.encode(TEXTS),
    }


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    assert {k: v for k, v in before.items() if k not in ("weights", "embeddings")} == {
        k: v for k, v in after.items() if k not in ("weights", "embeddings")
    }
    assert all(torch.equal(value, after["weights"][name]) for name, value in before["weights"].items())  # type: ignore[index, attr-defined]
    assert np.array_equal(before["embeddings"], after["embeddings"])  # type: ignore[arg-type]


def test_cut_shares_memory_of_full_model(minilm: SentenceTransformer) -> None:
    cut = truncate(minilm, num_layers=2, dim=32)
    full = {parameter.data_ptr() for parameter in minilm.parameters()}
    assert all(parameter.data_ptr() in full for parameter in cut.parameters())
    assert len(list(cut.parameters())) < len(list(minilm.parameters()))
    assert not {id(parameter) for parameter in cut.parameters()} & {id(parameter) for parameter in minilm.parameters()}


def test_changing_cut_leaves_full_model(tiny: SentenceTransformer) -> None:
    tiny.encode(TEXTS)
    before = snapshot(tiny)
    cut = truncate(tiny, num_layers=2, dim=8)
    cut.max_seq_length = 7
    cut.prompts["query"] = "ask: "
    cut.tokenizer.padding_side = "left"
    cut.config.hidden_dropout_prob = 0.9
    cut[1].pooling_mode = ("cls",)
    cut.train().bfloat16()
    assert cut.dtype == torch.bfloat16
    assert_same(before, snapshot(tiny))


def test_cut_keeps_hooks_of_full_model(tiny: SentenceTransformer) -> None:
    class Counter:
        calls = 0

        def count(self, *_: object) -> None:
            self.calls += 1

    counter = Counter()
    tiny[0].model.encoder.layer[0].register_forward_hook(counter.count)
    cut = truncate(tiny, num_layers=1)
    before = counter.calls
    cut.encode(TEXTS)
    assert counter.calls == before + 1


def test_checked_model_can_be_pickled(tiny: SentenceTransformer) -> None:
    """Encoding with several processes pickles the model, which transformers' hooks for hidden states would prevent."""
    cut = truncate(tiny, num_layers=2, dim=8)
    encode_sizes(tiny, TEXTS, sizes_ladder(tiny))
    loss = StarbucksLoss(tiny, MultipleNegativesRankingLoss(tiny))
    for model in (tiny, cut):
        assert np.array_equal(pickle.loads(pickle.dumps(model)).encode(TEXTS), model.encode(TEXTS))
    loss([tiny.preprocess(TEXTS), tiny.preprocess(TEXTS)])
    after = truncate(tiny, num_layers=2, dim=8)
    assert np.array_equal(pickle.loads(pickle.dumps(after)).encode(TEXTS), cut.encode(TEXTS))


def test_training_the_full_model_trains_the_cut(tiny: SentenceTransformer) -> None:
    cut = truncate(tiny, num_layers=2)
    with torch.no_grad():
        for parameter in tiny.parameters():
            parameter.mul_(1.01)
    assert np.array_equal(cut.encode(TEXTS), encode_sizes(tiny, TEXTS, [Size(2, 32)])[Size(2, 32)])


def test_dim_of_cut_is_default_of_encode(tiny: SentenceTransformer) -> None:
    """As with `truncate_dim` elsewhere, the modules still compute the full width."""
    cut = truncate(tiny, dim=8)
    assert np.array_equal(cut.encode(TEXTS, truncate_dim=16), tiny.encode(TEXTS)[:, :16])
    assert cut(cut.preprocess(TEXTS))["sentence_embedding"].shape == (5, 32)


def test_cut_returns_prefix_without_renormalising(minilm: SentenceTransformer) -> None:
    full, cut = minilm.encode(TEXTS), truncate(minilm, dim=32)
    assert np.array_equal(cut.encode(TEXTS), full[:, :32])
    assert np.linalg.norm(cut.encode(TEXTS), axis=1).max() < 0.9
    assert np.allclose(np.linalg.norm(cut.encode(TEXTS, normalize_embeddings=True), axis=1), 1)
    sizes = encode_sizes(minilm, TEXTS, [Size(6, 32)], normalize_embeddings=True)
    assert np.allclose(sizes[Size(6, 32)], cut.encode(TEXTS, normalize_embeddings=True), atol=1e-7)


def test_a_cut_of_a_cut_is_the_smaller_cut(tiny: SentenceTransformer) -> None:
    twice = truncate(truncate(tiny, num_layers=3, dim=16), num_layers=2, dim=8)
    assert np.array_equal(twice.encode(TEXTS), truncate(tiny, num_layers=2, dim=8).encode(TEXTS))
    with pytest.raises(ValueError, match="num_layers=3: the model has 2 layers"):
        truncate(twice, num_layers=3)
    with pytest.raises(ValueError, match="dim=16: the model has 8 dimensions"):
        truncate(twice, dim=16)


def test_prompts_settings_and_head_are_kept(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.prompts = {"query": "red blue ", "document": "old "}
    tiny.similarity_fn_name = "dot"
    tiny.max_seq_length = 9
    tiny.set_pooling_include_prompt(False)
    cut = truncate(tiny, num_layers=2, dim=8)
    cut.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    sizes = [Size(2, 8), Size(4, 32)]
    for method in ("encode_query", "encode_document"):
        expected = getattr(cut, method)(TEXTS)
        assert np.array_equal(getattr(again, method)(TEXTS), expected)
        name = method.removeprefix("encode_")
        assert np.array_equal(encode_sizes(tiny, TEXTS, sizes, prompt_name=name)[sizes[0]], expected)
    assert not np.allclose(cut.encode_query(TEXTS), cut.encode(TEXTS))
    assert (again.similarity_fn_name, again.max_seq_length, again.truncate_dim) == ("dot", 9, 8)


def test_saved_cut_has_its_layers_and_plain_modules(minilm: SentenceTransformer, tmp_path: Path) -> None:
    cut = truncate(minilm, num_layers=3, dim=64)
    cut.save_pretrained(str(tmp_path))
    assert all(
        module["type"].startswith("sentence_transformers.") for module in json.loads((tmp_path / "modules.json").read_text())
    )
    weights = load_file(tmp_path / "model.safetensors")
    assert {name.split(".")[2] for name in weights if name.startswith("encoder.layer.")} == {"0", "1", "2"}
    assert np.array_equal(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), cut.encode(TEXTS))


@pytest.mark.slow
def test_a_saved_cut_is_plain(minilm: SentenceTransformer, tmp_path: Path) -> None:
    """It loads in a process that cannot import this package, without trust_remote_code."""
    cut = truncate(minilm, num_layers=3, dim=64)
    cut.save_pretrained(str(tmp_path / "cut"))
    np.save(tmp_path / "expected.npy", cut.encode(TEXTS))
    (tmp_path / "load.py").write_text(
        "import sys, numpy as np\n"
        "sys.modules['st_matryoshka2d'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"model = SentenceTransformer({str(tmp_path / 'cut')!r}, device='cpu')\n"
        f"expected = np.load({str(tmp_path / 'expected.npy')!r})\n"
        f"assert np.abs(model.encode({TEXTS!r}) - expected).max() < 1e-6\n"
    )
    subprocess.run([sys.executable, str(tmp_path / "load.py")], check=True, capture_output=True)


def test_saved_cut_declares_dims_for_servers(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.config.matryoshka_dimensions = [8, 16, 32]
    truncate(tiny, num_layers=2, dim=16).save_pretrained(str(tmp_path / "trained"))
    saved = json.loads((tmp_path / "trained" / "config.json").read_text())
    assert (saved["is_matryoshka"], saved["matryoshka_dimensions"]) == (True, [8, 16])
    assert saved["num_hidden_layers"] == 2
    tiny.save_pretrained(str(tmp_path / "full"))
    assert load(str(tmp_path / "full"), num_layers=1, dim=24).config.matryoshka_dimensions == [8, 16, 24]


def test_cuts_in_bfloat16(tiny: SentenceTransformer) -> None:
    half = copy.deepcopy(tiny).bfloat16()
    sizes = sizes_ladder(half)
    for size, embeddings in encode_sizes(half, TEXTS, sizes).items():
        cut = truncate(half, num_layers=size.num_layers, dim=size.dim)
        assert cut.dtype == torch.bfloat16
        assert np.abs(cut.encode(TEXTS, convert_to_tensor=True).float().numpy() - embeddings).max() < 1e-6


def test_models_without_layers_are_refused(tiny: SentenceTransformer) -> None:
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got BertModel"):
        truncate(tiny[0].model, num_layers=1)
    static = SentenceTransformer(modules=[StaticEmbedding(families.tokenizer(), embedding_dim=8)], device="cpu")
    assert truncate(static, dim=4).encode(TEXTS).shape[1] == 4
    with pytest.raises(ValueError, match="num_layers=1: the model has 0 layers"):
        truncate(static, num_layers=1)
    mixing = SentenceTransformer(modules=[tiny[0], WeightedLayerPooling(32, num_hidden_layers=4), Pooling(32)], device="cpu")
    with pytest.raises(ValueError, match="WeightedLayerPooling mixes all layers"):
        truncate(mixing, num_layers=1)


def test_encode_sizes_refuses_ambiguous_arguments(tiny: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="does not take \\['truncate_dim'\\]"):
        encode_sizes(tiny, TEXTS, [Size(1, 8)], truncate_dim=4)
    with pytest.raises(TypeError, match="must be a list of sizes"):
        encode_sizes(tiny, TEXTS, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected a SentenceTransformer, got str"):
        encode_sizes("a-model", TEXTS, [Size(1, 8)])  # type: ignore[arg-type]


def test_encode_sizes_takes_sizes_and_their_text(tiny: SentenceTransformer) -> None:
    embeddings = encode_sizes(tiny, TEXTS, ["2L-8d", Size(4, 32)])
    assert np.allclose(embeddings[Size(2, 8)], truncate(tiny, "2L-8d").encode(TEXTS), atol=1e-6)
    assert list(embeddings) == [Size(2, 8), Size(4, 32)]


def test_sizes_of_one_depth_share_no_memory(tiny: SentenceTransformer) -> None:
    for texts in (TEXTS, TEXTS[:1]):
        embeddings = encode_sizes(tiny, texts, ["4L-8d", "4L-16d", "4L-32d"])
        embeddings[Size(4, 16)][:] = 0
        for size in (Size(4, 8), Size(4, 32)):
            assert np.allclose(embeddings[size], truncate(tiny, size).encode(texts), atol=1e-6)


def test_no_texts_give_no_embeddings(tiny: SentenceTransformer) -> None:
    assert {size: part.shape for size, part in encode_sizes(tiny, [], ["1L-8d", "4L-32d"]).items()} == {
        Size(1, 8): (0, 8),
        Size(4, 32): (0, 32),
    }


def test_encode_sizes_sends_each_text_through_the_model_once(tiny: SentenceTransformer) -> None:
    seen: list[int] = []
    weight = tiny[0].model.embeddings.word_embeddings
    with weight.register_forward_hook(lambda module, args, output: seen.append(len(args[0]))):
        encode_sizes(tiny, TEXTS * 3, sizes_ladder(tiny), batch_size=4)
    probes = 3  # forward passes that verify the cut, two rows each
    assert sum(seen) >= len(TEXTS) * 3
    assert sum(count for count in seen if count != 2) <= len(TEXTS) * 3 + probes * 2
