"""The SMAE loss and its gradients, compared with equations 6 to 9 of Starbucks as a slow loop; what is built and saved."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
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
from tests.support.smae import NARROW_HEADS, PLACES, batch, config, masked_lm, randomise, slow

ALL = ["1L-4d", "2L-8d", "3L-16d", "4L-32d"]


@dataclass(frozen=True)
class Case:
    """One set of arguments."""

    name: str
    sizes: list[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("linear", ALL),
    Case("head", ALL, {"projection": "head"}),
    Case("without a decoder", ALL, {"mae": False}),
    Case("head, without a decoder", ALL, {"projection": "head", "mae": False}),
    Case("two decoder layers", ["2L-8d", "4L-32d"], {"decoder_layers": 2}),
    Case("without the full size", ["2L-8d", "3L-32d", "4L-31d"]),
    Case("one size", ["3L-5d"]),
    Case("two widths of one layer", ["2L-32d", "2L-8d", "4L-32d"]),
    Case("plain masked language modelling", ["4L-32d"], {"projection": "head", "mae": False}),
    Case("the ladder"),
]


# Sizes do not depend on the family; projections and decoders do.
TABLE = [("bert", case) for case in CASES] + [
    (family, case)
    for family in PLACES
    for case in (CASES[0], CASES[1], CASES[4])
    if family != "bert" and not (case.name == "head" and family in NARROW_HEADS)
]


def trained(family: str, case: Case, seed: int = 0) -> SMAEForPreTraining:
    """Build a model in training mode and double precision, with changed W and decoder."""
    model = SMAEForPreTraining(masked_lm(family, seed=seed), case.sizes, **case.settings)
    with torch.no_grad():
        randomise(model.decoder)
        if model.W is not None:
            model.W.add_(torch.randn_like(model.W), alpha=0.2)
    return model.double().train()


def gradients(model: SMAEForPreTraining, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of every parameter; zero if unused."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


def assert_close(found: Tensor, expected: Tensor, name: str) -> None:
    """Check closeness; some families compute rotations or norms in single precision, else 1e-12 would suffice."""
    difference = float((found - expected).detach().abs().max())
    assert difference <= 1e-6 * max(1.0, float(expected.detach().abs().max())), f"{name}: {difference:.1e}"


@pytest.mark.parametrize(("family", "case"), quick(TABLE, *TABLE[:5], ("modernbert", CASES[0])), ids=str)
def test_values_and_gradients_are_those_of_the_slow_loop(family: str, case: Case) -> None:
    model, inputs = trained(family, case), batch()
    projection, mae = case.settings.get("projection", "linear"), case.settings.get("mae", True)
    loss, parts = slow(model, family, inputs, projection, mae)
    output = model(**inputs)
    assert output.parts.keys() == parts.keys()
    for name, part in parts.items():
        assert_close(output.parts[name], part, name)
        assert not output.parts[name].requires_grad
    assert_close(output.loss, loss, "loss")
    assert_close(torch.stack(list(output.parts.values())).sum() / len(model.sizes), loss, "sum of the parts")
    expected = gradients(model, loss)
    for name, gradient in gradients(model, output.loss).items():
        assert_close(gradient, expected[name], name)
    assert not mae or all(expected[name].any() for name in expected if name.startswith("decoder.") and "key" not in name)
    assert model.W is None or expected["W"].any()


def test_w_starts_as_the_identity() -> None:
    """Then prefixes are padded with zeros, and the full size is plain masked language modelling."""
    model, inputs = SMAEForPreTraining(masked_lm(), ALL).double(), batch()
    assert model.W is not None
    assert torch.equal(model.W, torch.eye(32).double())
    loss, parts = slow(model, "bert", inputs)
    output = model(**inputs)
    assert_close(output.loss, loss, "loss")
    arguments = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels")}
    assert_close(output.parts["4L-32d/encoder"], model.mlm(**arguments).loss, "full size")
    assert float((parts["1L-4d/encoder"] - parts["4L-32d/encoder"]).detach().abs()) > 1e-3


def test_without_an_attention_mask_every_token_counts() -> None:
    model, inputs = trained("bert", CASES[0]), batch()
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    expected, _ = slow(model, "bert", inputs)
    del inputs["attention_mask"]
    assert_close(model(**inputs).loss, expected, "loss")


@pytest.mark.parametrize("family", ["bert", "modernbert", "eurobert"])
def test_the_decoder_may_be_deeper_than_the_encoder(family: str) -> None:
    """Some families run only as many blocks as their config states."""
    model = SMAEForPreTraining(masked_lm(family, num_hidden_layers=1), ["1L-8d"], decoder_layers=2).double()
    with torch.no_grad():
        randomise(model.decoder)
    expected, _ = slow(model, family, batch())
    assert_close(model(**batch()).loss, expected, "loss")


# the others have their blocks in the same places
KINDS_OF_PLACES = ["bert", "electra", "deberta-v2", "modernbert"]


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
    before, modules, said = mlm.eval()(**tokens), dict(mlm.named_modules()), mlm.config.to_dict()
    model = SMAEForPreTraining(mlm).train()
    assert mlm.training
    model(**batch())
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in mlm.modules())
    for _ in range(2):
        model(**batch()).loss.backward()
    assert dict(mlm.named_modules()) == modules
    assert mlm.config.to_dict() == said
    assert sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in mlm.modules()) == hooks
    after = mlm.eval()(**tokens)
    assert torch.equal(after.logits, before.logits)
    assert after.hidden_states is None


def test_dropout_is_on_in_training_alone() -> None:
    model = SMAEForPreTraining(masked_lm(dropout=None), ["2L-8d", "4L-32d"])
    noisy, quiet = ([model.train(mode)(**batch()).loss.item() for _ in range(2)] for mode in (True, False))
    assert noisy[0] != noisy[1]
    assert quiet[0] == quiet[1]


def _without(*names: str) -> dict[str, Tensor]:
    return {name: value for name, value in batch().items() if name not in names}


def test_without_a_decoder_its_inputs_are_not_needed() -> None:
    model = SMAEForPreTraining(masked_lm(), mae=False)
    assert torch.equal(model(**_without("decoder_input_ids", "decoder_labels")).loss, model(**batch()).loss)


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
