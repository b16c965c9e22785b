"""The proof that a cut is exact: what it refuses, what it says, and that it leaves the model alone."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from sentence_transformers import SentenceTransformer
from torch import nn

from st_matryoshka2d import Size, align, encode_sizes, load, truncate
from st_matryoshka2d.cutting.exactness import check_depths
from st_matryoshka2d.model.backbone import find_backbone, shallow_view
from st_matryoshka2d.model.declaration import Declaration
from st_matryoshka2d.model.layers import Layers
from tests.support import families
from tests.support.families import TEXTS
from tests.support.quick import quick


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SentenceTransformer]:
    """Return a function that builds a pipeline around layers of two kinds, once."""
    folder = tmp_path_factory.mktemp("mixed")
    return functools.cache(lambda name: families.pipeline(families.MIXED[name][0](), folder / name, "mean", None, False))


@pytest.mark.parametrize("name", quick([*families.MIXED], "embedding-gemma2", "embedding-gemma2, images too"))
def test_a_config_that_would_be_read_anew_is_refused_everywhere(
    name: str, mixed: Callable[[str], SentenceTransformer], tmp_path: Path
) -> None:
    model = mixed(name)
    model.save_pretrained(str(tmp_path))
    said: set[str] = set()
    for way in (
        lambda: truncate(model, num_layers=1),
        lambda: load(tmp_path, num_layers=1),
        lambda: align(model, TEXTS, layers="first"),
    ):
        with pytest.raises(ValueError, match="cannot be cut in depth exactly") as caught:
            way()
        said.add(str(caught.value))
    [told] = said
    assert "layer_types of its layer 1 is 'sliding_attention', and would be 'full_attention'" in told
    if name == "gemma4, shared keys":
        assert told.endswith("one in that place that is so: [3, 6].")
    else:
        assert told.endswith("one in that place that is so: [3, 6], such as layers=[3].")
        assert truncate(model, layers=[3]).encode(TEXTS).shape == (5, 32)


def test_a_model_whose_first_layer_is_no_model_is_aligned(mixed: Callable[[str], SentenceTransformer]) -> None:
    aligned = align(mixed("embedding-gemma2"), TEXTS, steps=0)
    assert aligned.config.matryoshka_layers["1"] == [6]
    assert aligned.config.matryoshka_layers["3"] == [1, 5, 6]
    [small] = encode_sizes(aligned, TEXTS, [Size(1, 32)]).values()
    np.testing.assert_allclose(truncate(aligned, num_layers=1).encode(TEXTS), small, atol=1e-5 * np.abs(small).max())


def test_images_enter_a_cut_as_the_whole_model(mixed: Callable[[str], SentenceTransformer]) -> None:
    model = mixed("embedding-gemma2, images too")
    ids, patches = torch.tensor([[2, 20, 5, 8, 3]]), torch.linspace(0, 1, 4 * 48).view(1, 4, 48)
    image = {"pixel_values": patches, "image_position_ids": torch.tensor([[[0, 0], [1, 0], [0, 1], [1, 1]]])}
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    by_hand = families.without_blocks(model[0].model, "language_model.layers", [0, 2, 3, 5])
    with torch.no_grad():
        wanted, of_text = by_hand(**text, **image).last_hidden_state, by_hand(**text).last_hidden_state
        cut = truncate(model, layers=[1, 3, 4, 6])[0].model(**text, **image).last_hidden_state
    torch.testing.assert_close(cut, wanted)
    assert (wanted - of_text).abs().max() > 0.1, "the image counts"
    [three, whole] = encode_sizes(model, TEXTS, ["3L-32d", "6L-32d"]).values()
    np.testing.assert_allclose(whole, model.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(truncate(model, num_layers=3).encode(TEXTS), three, atol=1e-5 * np.abs(three).max())
    with pytest.raises(ValueError, match="The vocabulary of EmbeddingGemma2Model is not cut"):
        truncate(model, vocabulary=TEXTS * 9)


@pytest.mark.slow
def test_a_model_of_images_too_is_aligned(mixed: Callable[[str], SentenceTransformer], tmp_path: Path) -> None:
    aligned = align(mixed("embedding-gemma2, images too"), TEXTS, steps=0)
    aligned.save_pretrained(str(tmp_path))
    whole, three = encode_sizes(aligned, TEXTS, ["6L-32d", "3L-32d"]).values()
    np.testing.assert_allclose(whole, aligned.encode(TEXTS), atol=1e-6)
    for way in (truncate(aligned, num_layers=3), load(tmp_path, num_layers=3)):
        np.testing.assert_allclose(way.encode(TEXTS), three, atol=1e-5 * np.abs(three).max())
        assert way.config.text_config.num_hidden_layers == 3
        assert way.config.matryoshka_cut["layers"] == [1, 5, 6]
        assert {size.num_layers for size in Declaration.of(way.config).sizes} == {3}, "those of the cut"


def test_images_that_enter_layers_by_number_are_refused() -> None:
    text = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 40}
    model = families.build(hf.Qwen3VLConfig(text_config=text, vision_config={"depth": 2, "hidden_size": 16}))
    with pytest.raises(ValueError, match="takes deepstack_visual_embeds, visual_pos_masks too"):
        find_backbone(model)


def test_layers_without_the_keys_that_they_share_are_refused(mixed: Callable[[str], SentenceTransformer]) -> None:
    with pytest.raises(ValueError, match="last 2 layers take keys and values from layers before them"):
        truncate(mixed("gemma4, shared keys"), layers=[1, 2, 5, 6])


def test_training_a_depth_trains_its_part_of_a_tensor_of_all_layers(mixed: Callable[[str], SentenceTransformer]) -> None:
    model = copy.deepcopy(mixed("embedding-gemma2"))[0].model
    weight = model.ple.per_layer_model_projection.weight
    backbone = find_backbone(model, Layers(6).chosen({2: [2, 3]}))
    shallow_view(model, backbone, 2)(input_ids=torch.tensor([[2, 5, 3]])).last_hidden_state.sum().backward()
    trained = weight.grad.view(6, -1).abs().sum(dim=1)
    assert (trained > 0).tolist() == [False, True, True, False, False, False]


def test_a_refusal_names_what_differs() -> None:
    longformer = families.build(
        hf.LongformerConfig(vocab_size=40, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, attention_window=8)
    )
    with pytest.raises(
        ValueError, match=r"layer_id of block 1.attention.self would be 1 .* 3 in .* layers=\"first\".$"
    ) as caught:
        check_depths(longformer, find_backbone(longformer, Layers(4, "ends")), [2])
    assert len(str(caught.value)) < 300
    bert = families.build(families.CONFIGS["bert"]())
    bert.embeddings.position_ids = bert.embeddings.position_ids.flip(1)
    with pytest.raises(ValueError, match=r"No checkpoint has these buffers.*: embeddings.position_ids\."):
        check_depths(bert, find_backbone(bert), [2])


@pytest.mark.parametrize("name", families.REFUSED)
def test_refuses_family_without_exact_cut(name: str) -> None:
    model = families.build(families.REFUSED[name]())
    with pytest.raises(ValueError, match=rf"{type(model).__name__} cannot be cut in depth exactly"):
        check_depths(model, find_backbone(model, Layers(4, "ends")), [1, 2, 3])


def test_layers_that_are_one_module_are_refused(tiny: SentenceTransformer) -> None:
    first, second, *_ = tiny[0].model.encoder.layer
    tiny[0].model.encoder.layer = nn.ModuleList([first, second, first, second])
    with pytest.raises(ValueError, match=r"encoder.layer holds the same module more than once.*copy.deepcopy"):
        truncate(tiny, num_layers=3)


def test_check_leaves_model_unchanged() -> None:
    model = families.build(families.CONFIGS["modernbert"]()).train()
    model.layers[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    config = model.config.to_dict()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    check_depths(model, find_backbone(model), [1, 2, 3, 4])
    assert torch.equal(torch.rand(4), expected), "random numbers were used up"
    assert [module.training for module in model.modules()] == modes
    assert model.config.to_dict() == config
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    inputs = {"input_ids": torch.tensor([[2, 5, 3]])}
    states = model.eval()(**inputs, output_hidden_states=True).hidden_states
    assert len(states) == 5, "views must not leave hooks on the model"
