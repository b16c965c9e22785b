"""SMAE: saved files, tied weights, and errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d import Size
from st_matryoshka2d.pretraining import SMAEForPreTraining
from tests.support import families
from tests.support.quick import quick
from tests.support.smae import PLACES, batch, config, masked_lm

KINDS_OF_PLACES = ["bert", "electra", "deberta-v2", "modernbert"]  # the others have their blocks in the same places


def stepped(model: SMAEForPreTraining) -> SMAEForPreTraining:
    """Train one step, large enough to change every parameter."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.train()(**batch()).loss.backward()
    optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to start from."""
    folder = tmp_path_factory.mktemp("start")
    masked_lm().save_pretrained(folder)
    families.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pretrained(start: Path) -> SMAEForPreTraining:
    return stepped(SMAEForPreTraining.from_pretrained(start, sizes=["2L-8d", "4L-32d"], decoder_layers=2))


def test_loading_takes_the_checkpoint_and_the_arguments(start: Path) -> None:
    model = SMAEForPreTraining.from_pretrained(start, ["1L-4d", Size(3, 8)], 2, "head", dtype=torch.float64)
    assert (model.sizes, len(model.decoder), model.W) == ([Size(1, 4), Size(3, 8)], 2, None)
    assert model.tokenizer is not None
    assert model.tokenizer.mask_token == "[MASK]"
    for name, weight in masked_lm().double().state_dict().items():
        assert torch.equal(model.mlm.state_dict()[name], weight), name
    assert len(SMAEForPreTraining.from_pretrained(start, mae=False).decoder) == 0
    assert SMAEForPreTraining.from_pretrained(start).sizes == [Size(1, 4), Size(2, 8), Size(3, 16), Size(4, 32)]


@pytest.mark.parametrize("family", quick(["bert", "roberta", "mpnet", "modernbert", "deberta-v2"], "roberta", "modernbert"))
def test_adds_head_to_encoder_without_one(family: str, tmp_path: Path) -> None:
    """Most sentence-embedding models have no head. A folder without a tokenizer gets none."""
    families.build(config(family)).save_pretrained(tmp_path)
    model = SMAEForPreTraining.from_pretrained(tmp_path)
    assert model.tokenizer is None
    stepped(model).save_pretrained(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"config.json", "model.safetensors"}


def test_saves_plain_encoder(pretrained: SMAEForPreTraining, start: Path, tmp_path: Path) -> None:
    """It needs nothing of this package, and gives the outputs of the trained encoder."""
    pretrained.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in start.iterdir()}
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
    assert not any("st_matryoshka2d" in path.read_text() for path in tmp_path.glob("*.json"))
    names = [set(load_file(folder / "model.safetensors")) for folder in (start, tmp_path)]
    assert names[0] == names[1], "no decoder and no W"
    tokens = hf.AutoTokenizer.from_pretrained(tmp_path)(families.TEXTS, padding=True, return_tensors="pt")
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        states = pretrained.mlm.base_model(**inputs).last_hidden_state
        logits = pretrained.mlm(**inputs).logits
        assert torch.equal(hf.AutoModel.from_pretrained(tmp_path).eval()(**inputs).last_hidden_state, states)
        assert torch.equal(hf.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(**inputs).logits, logits)
        untrained = masked_lm().eval()(**inputs).logits
    weights = inputs["attention_mask"][:, :, None]
    embeddings = SentenceTransformer(str(tmp_path), device="cpu").encode(families.TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(embeddings, (states * weights).sum(1) / weights.sum(1))
    assert float((untrained - logits).abs().max()) > 1e-2, "the step has changed it"


@pytest.mark.parametrize("family", quick(["bert", "roberta", "modernbert", "electra"], "modernbert", "electra"))
def test_a_state_dict_is_written_and_read_although_weights_are_tied(family: str, tmp_path: Path) -> None:
    model = stepped(SMAEForPreTraining(masked_lm(family)))
    save_file(model.state_dict(), tmp_path / "state.safetensors")
    other = SMAEForPreTraining(masked_lm(family, seed=1))
    assert not torch.equal(other.eval()(**batch()).loss, model(**batch()).loss)
    other.load_state_dict(load_file(tmp_path / "state.safetensors"), strict=True)
    assert torch.equal(other(**batch()).loss, model(**batch()).loss)
    for loaded in (other, copy.deepcopy(other)):
        stepped(loaded)
        assert loaded.mlm.get_input_embeddings().weight is loaded.mlm.get_output_embeddings().weight


@pytest.mark.parametrize("change", [lambda state: state.pop("W"), lambda state: state.update(unknown=torch.ones(1))])
def test_a_state_dict_of_another_model_is_refused(change: Callable[[dict[str, Tensor]], Any]) -> None:
    model = SMAEForPreTraining(masked_lm())
    state = dict(model.state_dict())
    change(state)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*\"W\"|Unexpected key\(s\).*\"unknown\""):
        model.load_state_dict(state, strict=True)


@pytest.mark.parametrize("family", quick(PLACES, *KINDS_OF_PLACES))
def test_the_decoder_starts_as_the_first_block_and_shares_nothing(family: str) -> None:
    model = SMAEForPreTraining(masked_lm(family), decoder_layers=2)
    first = model.mlm.get_submodule(f"{PLACES[family][0]}.0").state_dict()
    for block in model.decoder:
        assert block.state_dict().keys() == first.keys()
        assert all(torch.equal(weight, first[name]) for name, weight in block.state_dict().items())
    memory = [weight.data_ptr() for weight in (*model.mlm.parameters(), *model.decoder.parameters())]
    assert len(set(memory)) == len(memory)


@pytest.mark.parametrize("family", quick(PLACES, *KINDS_OF_PLACES))
def test_a_step_leaves_the_model_as_it_was(family: str) -> None:
    """Modules, config and outputs are unchanged, and no hooks are added."""
    mlm = masked_lm(family)
    tokens = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    before, modules, said = mlm.eval()(**tokens), dict(mlm.named_modules()), mlm.config.to_json_string()
    model = SMAEForPreTraining(mlm).train()
    assert mlm.training
    model(**batch())
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in mlm.modules())
    for _ in range(2):
        model(**batch()).loss.backward()
    assert dict(mlm.named_modules()) == modules
    assert mlm.config.to_json_string() == said
    assert sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in mlm.modules()) == hooks
    after = mlm.eval()(**tokens)
    assert torch.equal(after.logits, before.logits)
    assert after.hidden_states is None


def test_building_it_leaves_modes_and_random_numbers_alone() -> None:
    mlm = masked_lm().train()
    torch.manual_seed(0)
    SMAEForPreTraining(mlm)
    assert all(module.training for module in mlm.modules())
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))


def test_dropout_is_on_in_training_alone() -> None:
    model = SMAEForPreTraining(masked_lm(dropout=None), ["2L-8d", "4L-32d"])
    noisy, quiet = ([model.train(mode)(**batch()).loss.item() for _ in range(2)] for mode in (True, False))
    assert noisy[0] != noisy[1]
    assert quiet[0] == quiet[1]


REFUSED: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (lambda: masked_lm(is_decoder=True), {}, ValueError, r"decoder \(config.is_decoder\)"),
    (
        lambda: hf.AutoModelForMaskedLM.from_config(families.CONFIGS["albert"]()),
        {},
        ValueError,
        "Albert.* repeats one",
    ),
    (lambda: hf.AutoModelForCausalLM.from_config(families.CONFIGS["qwen3"]()), {}, ValueError, "Qwen3.* generates text"),
    (lambda: families.build(config("bert")), {}, ValueError, "BertModel"),
    (lambda: torch.nn.Linear(2, 2), {}, TypeError, "PreTrainedModel.*Linear"),
    (masked_lm, {"sizes": ["5L-8d"]}, ValueError, "5.*4"),
    (masked_lm, {"sizes": []}, ValueError, "sizes"),
    (masked_lm, {"sizes": ["all"]}, ValueError, "6L-128d.*all"),
    (masked_lm, {"projection": "mlp"}, ValueError, "'linear' or 'head', got 'mlp'"),
    (lambda: masked_lm("electra"), {"projection": "head"}, ValueError, "16 wide, its states are 32 wide.*'linear'"),
    (masked_lm, {"decoder_layers": 0}, ValueError, "decoder_layers.*0"),
    (masked_lm, {"decoder_layers": 0.5}, TypeError, "decoder_layers.*0.5"),
]


@pytest.mark.parametrize(("make", "settings", "error", "words"), REFUSED)
def test_refused_at_construction(
    make: Callable[[], Any], settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        SMAEForPreTraining(make(), **settings)


def _without(*names: str) -> dict[str, Tensor]:
    return {name: value for name, value in batch().items() if name not in names}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (_without("labels"), "labels is missing.*SMAEDataCollator"),
        (_without("decoder_labels"), "decoder_labels is missing.*SMAEDataCollator"),
        (_without("decoder_input_ids"), "decoder_input_ids is missing.*mae=False"),
        (batch() | {"labels": torch.full((4, 9), -100)}, "^labels has no masked token"),
        (batch() | {"decoder_labels": torch.full((4, 9), -100)}, "^decoder_labels has no masked token"),
    ],
)
def test_refused_at_the_first_batch(given: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SMAEForPreTraining(masked_lm())(**given)


def test_without_a_decoder_its_inputs_are_not_needed() -> None:
    model = SMAEForPreTraining(masked_lm(), mae=False)
    assert torch.equal(model(**_without("decoder_input_ids", "decoder_labels")).loss, model(**batch()).loss)


def test_a_decoder_only_checkpoint_is_refused_by_its_config(tmp_path: Path) -> None:
    families.CONFIGS["qwen3"]().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a qwen3, which has no masked-LM head"):
        SMAEForPreTraining.from_pretrained(tmp_path)


def test_a_tokenizer_without_a_mask_token_is_refused(start: Path, tmp_path: Path) -> None:
    masked_lm().save_pretrained(tmp_path)
    tokenizer = families.tokenizer()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no mask token"):
        SMAEForPreTraining.from_pretrained(tmp_path)


SAME_DEPTH = ["4L-4d", "4L-8d", "4L-16d"]


def kept_for_backward(model: SMAEForPreTraining) -> int:
    """Return the bytes that a forward pass keeps, besides parameters."""
    parameters = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model.train()(**batch()).loss
    assert loss.requires_grad
    return sum(kept.values())


def test_the_decoders_of_further_sizes_are_not_kept() -> None:
    """The widest tensor of a decoder pass alone would exceed the memory that a further size adds."""
    inner = 512
    few, many = (
        kept_for_backward(SMAEForPreTraining(masked_lm(intermediate_size=inner), sizes))
        for sizes in (["4L-32d"], ["4L-32d", *SAME_DEPTH])
    )
    assert many - few < len(SAME_DEPTH) * batch()["input_ids"].numel() * inner * 4
