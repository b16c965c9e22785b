"""Every recipe in the Trainer, in `fit` and `old_fit`, with the Trainer's options, and on model cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig
from sentence_transformers import InputExample, SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from st_matryoshka2d import Size, truncate
from st_matryoshka2d.losses import MultiSizeLoss, RelationalDistillLoss, StarbucksLoss, Step, Term, TwoDMSELoss
from tests.support import families
from tests.support.families import TEXTS
from tests.support.losses import assert_gradients_close, batch, exact, gradients, seed_draws, total
from tests.support.quick import quick
from tests.support.training import OLD, RECIPES, Watch, pairs, train

pytestmark = pytest.mark.filterwarnings(
    "ignore:This model was not trained at", "ignore:.* does not train the full size", "ignore:MIPICLoss trains"
)

Features = list[dict[str, Any]]


def stream() -> IterableDataset:
    return pairs().to_iterable_dataset()


@dataclass
class Setup:
    """A feature to enable, and a check that it is active in a step."""

    arguments: dict[str, Any] = field(default_factory=dict)
    mini_batch_size: int | None = None
    prepare: Callable[[SentenceTransformer], Any] = lambda model: None
    dataset: Callable[[], Any] = pairs
    prompt: str | None = None
    is_on: Callable[[MultiSizeLoss, Features], bool] = lambda loss, features: True


def is_compiled(loss: MultiSizeLoss, features: Features) -> bool:
    """Return whether the loss has a compiled model and, from the second step on, calls it."""
    if not isinstance(loss.model, torch._dynamo.OptimizedModule):
        return False
    if hasattr(loss, "calls"):
        return len(loss.calls) > 0
    loss.calls = []
    loss.model.register_forward_pre_hook(lambda module, args: loss.calls.append(1))
    return True


def is_checkpointed(loss: MultiSizeLoss, features: Features) -> bool:
    return all(block.gradient_checkpointing and block.training for block in loss.model[0].model.encoder.layer)


def knows_its_prompt(loss: MultiSizeLoss, features: Features) -> bool:
    return "prompt_length" in features[0] and "prompt_length" not in features[1]


ADAPTER = LoraConfig(r=4, target_modules=["query", "value", "dense"])


PARTS = {"task", "kl", "compress", "mrl", "sia_attention", "sia_cka", "pic", "distill"}


ONLY_TEXT = {"prompt": "red ", "prepare": lambda model: model.set_pooling_include_prompt(False)}


SETUPS = {
    "gradient checkpointing, cached": Setup({"activation_checkpointing": True}, 3, is_on=is_checkpointed),
    "bfloat16, cached": Setup({"bf16": True, "use_cpu": True}, 3),
    "compiled": Setup({"torch_compile": True, "torch_compile_backend": "eager"}, is_on=is_compiled),
    "adapter": Setup({"learning_rate": 1e-2}, prepare=lambda model: model.add_adapter(ADAPTER)),
    "Normalize, cached": Setup(mini_batch_size=3, prepare=lambda model: model.append(Normalize())),
    "prompts that are not pooled": Setup({"prompts": {"anchor": "red "}}, is_on=knows_its_prompt, **ONLY_TEXT),
    "stream with prompts, cached": Setup({"prompts": {"anchor": "red "}}, 3, dataset=stream, **ONLY_TEXT),
}


def cases() -> list[Any]:
    """Return every setup with every recipe; the quick recipe alternates. Compilation takes longest, so it is never quick."""
    return [
        pytest.param(name, recipe, marks=[] if number == turn % len(RECIPES) and name != "compiled" else [pytest.mark.slow])
        for turn, name in enumerate(SETUPS)
        for number, recipe in enumerate(RECIPES)
    ]


@pytest.mark.parametrize(("name", "recipe"), cases())
def test_the_physically_cut_model_learns(tiny: SentenceTransformer, recipe: str, name: str, tmp_path: Path) -> None:
    setup = SETUPS[name]
    torch.manual_seed(0)  # an adapter begins at random values, which decide how much twelve steps teach
    setup.prepare(tiny)
    loss = RECIPES[recipe](tiny, mini_batch_size=setup.mini_batch_size)
    watch = Watch(tiny, recipe, setup.prompt)
    trainable = {name: p.detach().clone() for name, p in loss.named_parameters() if p.requires_grad}
    frozen = {name: p.detach().clone() for name, p in loss.named_parameters() if not p.requires_grad}
    steps: list[bool] = []
    loss.register_forward_pre_hook(lambda module, args: steps.append(setup.is_on(module, args[0])))
    dtypes = set()
    computing = tiny[0].model.encoder.layer[0].attention.self.query
    computing.register_forward_hook(lambda module, args, output: dtypes.add(output.dtype))
    trainer = train(tiny, loss, tmp_path, setup.dataset(), **setup.arguments)
    assert steps
    assert all(steps)
    assert (torch.bfloat16 in dtypes) == ("bf16" in setup.arguments)
    watch.assert_learned()
    parameters = {key.replace("_orig_mod.", ""): value for key, value in loss.named_parameters()}
    moved = {key for key, value in trainable.items() if not torch.equal(parameters[key], value)}
    assert set(loss.own) <= moved, "what the loss trains besides the model"
    assert any(".layer.0." in key for key in moved)
    assert all(torch.equal(parameters[key], value) for key, value in frozen.items())
    logged = [entry for entry in trainer.state.log_history if "learning_rate" in entry]
    parts = [sum(entry[part] for part in entry.keys() & PARTS) for entry in logged]
    assert [entry["loss"] for entry in logged] == pytest.approx(parts, rel=1e-3, abs=1e-3)


def mnrl(model: SentenceTransformer) -> MultipleNegativesRankingLoss:
    return MultipleNegativesRankingLoss(model)


def ranking_loss(model: SentenceTransformer, size: Size) -> float:
    cut = truncate(model, num_layers=size.num_layers, dim=size.dim)
    columns = [cut.encode(texts, convert_to_tensor=True) for texts in (TEXTS, OLD)]
    return float(mnrl(cut).compute_loss_from_embeddings(columns, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["fit", "old_fit"])
@pytest.mark.parametrize("recipe", quick(["Starbucks", "MIPIC"], "MIPIC"))
def test_the_older_fits_take_the_losses(
    tiny: SentenceTransformer, recipe: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # `fit` writes checkpoints to the working directory
    data: Any = [InputExample(texts=[text, old]) for text, old in zip(TEXTS, OLD, strict=True)]
    size = Size(4, 8)
    before = ranking_loss(tiny, size)
    objectives = [(DataLoader(data, batch_size=5), RECIPES[recipe](tiny))]
    getattr(tiny, how)(objectives, epochs=5, optimizer_params={"lr": 5e-3}, warmup_steps=0, show_progress_bar=False)
    assert ranking_loss(tiny, size) < before
    assert tiny.config.matryoshka_sizes


class Gradients(TrainerCallback):
    """Records the gradients that the optimizer receives."""

    def __init__(self, loss: MultiSizeLoss) -> None:
        self.loss = loss
        self.seen: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        found = {name: p.grad.clone() for name, p in self.loss.named_parameters() if p.grad is not None}
        self.seen.append(found)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@pytest.mark.parametrize("recipe", quick(RECIPES, "2DMSE", "MIPIC"))
def test_an_accumulated_gradient_is_the_mean(
    tiny: SentenceTransformer, recipe: str, mini_batch_size: int | None, tmp_path: Path
) -> None:
    """For parameters of the model, and of the loss, whose gradients do not come from the second embedding pass."""
    loss = RECIPES[recipe](exact(tiny), mini_batch_size=mini_batch_size).double()
    batches: list[list[dict[str, Any]]] = []

    def remember(_: Any, args: Any) -> None:
        seed_draws(loss, len(batches))
        batches.append([dict(column) for column in args[0]])

    keep = loss.register_forward_pre_hook(remember)
    callback = Gradients(loss)
    # Without a learning rate the weights stay, so that the batches can be repeated.
    settings = {"max_steps": 1, "gradient_accumulation_steps": 2, "learning_rate": 0.0, "max_grad_norm": 0.0}
    train(tiny, loss, tmp_path, callbacks=[callback], **settings)
    keep.remove()
    assert len(batches) == 2
    mean: dict[str, Tensor] = {}
    for number, columns in enumerate(batches):
        seed_draws(loss, number)
        for name, gradient in gradients(loss, total(loss(columns))).items():
            mean[name] = mean.get(name, 0) + gradient / 2
    assert all(bool(mean[name].any()) for name in loss.own)
    assert_gradients_close(callback.seen[0], mean, 1e-9)


def texts_and_scores() -> Dataset:
    return Dataset.from_dict({"a": TEXTS * 2, "b": OLD * 2, "score": [0.9, 0.1, 0.5, 0.4, 0.3] * 2})


@pytest.mark.parametrize("sampler", quick(["proportional", "round_robin"], "proportional"))
@pytest.mark.parametrize("recipe", quick(RECIPES, "MIPIC"))
def test_each_data_set_has_its_loss(tiny: SentenceTransformer, recipe: str, sampler: str, tmp_path: Path) -> None:
    losses = {
        "pairs": RECIPES[recipe](tiny),
        "scored": StarbucksLoss(tiny, CoSENTLoss(tiny), mini_batch_size=2),
        "texts": RelationalDistillLoss(tiny),
    }
    datasets = {"pairs": pairs(), "scored": texts_and_scores(), "texts": Dataset.from_dict({"text": TEXTS * 2})}
    calls: list[tuple[str, int]] = []
    for name, loss in losses.items():
        loss.register_forward_pre_hook(lambda module, args, name=name: calls.append((name, len(args[0]))))
    watch = Watch(tiny, recipe)
    own = {name: parameter.detach().clone() for name, parameter in losses["pairs"].own.items()}
    train(tiny, losses, tmp_path, datasets, max_steps=30, multi_dataset_batch_sampler=sampler)
    assert set(calls) == {("pairs", 2), ("scored", 2), ("texts", 1)}
    watch.assert_learned()
    assert not [name for name, before in own.items() if torch.equal(before, losses["pairs"].own[name])]


def noisy(model: SentenceTransformer, share: float = 0.1) -> SentenceTransformer:
    families.set_dropout(model, share)
    return model.train()


def twice(model: SentenceTransformer, count: int = 2) -> list[dict[str, Any]]:
    return [model.preprocess(TEXTS) for _ in range(count)]


class Spy(Term):
    """Records the embeddings of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Tensor]] = []

    def forward(self, step: Step) -> dict[str, Tensor]:
        for size in step.weights:
            self.seen.append([column.detach() for column in step.embeddings(size)])
        return {}

    def get_config_dict(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize(("count", "mini_batch_size"), [(2, None), (3, None), (3, 2), (3, 64)])
def test_each_equal_column_has_its_own_noise(tiny: SentenceTransformer, count: int, mini_batch_size: int | None) -> None:
    """Three columns: the second and third share a forward pass, but not their embeddings."""
    sizes = [Size(1, 8), Size(4, 32)]
    seen = {}
    for share in (0.0, 0.1):
        model, spy = noisy(tiny, share), Spy()
        task = MultipleNegativesRankingLoss(model)
        MultiSizeLoss(model, task, sizes, [spy], mini_batch_size=mini_batch_size)(twice(model, count))
        assert len(spy.seen) == len(sizes)
        seen[share] = spy.seen
    for columns in seen[0.0]:
        assert all(torch.allclose(columns[0], other, atol=1e-6) for other in columns[1:])
    for columns in seen[0.1]:
        for left in range(count):
            for right in range(left):
                difference = (columns[left] - columns[right]).abs().amax(dim=1)
                assert bool((difference > 1e-3).all()), "some text has the same noise in two columns"


@pytest.mark.parametrize("recipe", ["Starbucks", "MIPIC"])
def test_the_second_pass_replays_the_noise_of_each_column(tiny: SentenceTransformer, recipe: str) -> None:
    """One mini-batch per column draws the same noise as the plain loss, so the gradients must agree."""
    model = noisy(tiny).double()
    found = []
    plain = RECIPES[recipe](model).double()
    parameters = plain.state_dict()
    for loss in (plain, RECIPES[recipe](model, mini_batch_size=64).double()):
        loss.load_state_dict(parameters)
        seed_draws(loss, 5)
        parts = loss(twice(model))
        found.append((total(parts).item(), gradients(loss, total(parts))))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-9)
    assert_gradients_close(found[0][1], found[1][1], 1e-9)


def test_trained_dims_reach_the_saved_config(tiny: SentenceTransformer, tmp_path: Path) -> None:
    loss = StarbucksLoss(tiny, mnrl(tiny), sizes=[Size(1, 4), Size(4, 32)])
    loss.model.eval()
    loss(batch(tiny, 2))
    assert not hasattr(tiny.config, "matryoshka_dimensions"), "evaluating trains nothing"
    train(tiny, loss, tmp_path / "run", max_steps=1)
    tiny.save_pretrained(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert (again.config.is_matryoshka, again.config.matryoshka_dimensions) == (True, [4, 32])
    assert truncate(again, num_layers=2, dim=8).config.matryoshka_dimensions == [4, 8]


def test_settings_and_citation_reach_the_model_card(tiny: SentenceTransformer, tmp_path: Path) -> None:
    train(tiny, StarbucksLoss(tiny, mnrl(tiny), kl_weight=0.25), tmp_path / "run", max_steps=1)
    tiny.save_pretrained(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    for expected in ("StarbucksLoss", '"kl_weight": 0.25', '"1L-4d"', '"4L-32d"', "2410.13230"):
        assert expected in card, expected
    assert "2402.14776v1" in TwoDMSELoss(tiny, mnrl(tiny)).citation


@pytest.mark.parametrize("name", quick(["modernbert", "qwen3", "t5-encoder", "albert"], "albert"))
def test_other_families_train_embeddings_of_cut(name: str, tmp_path: Path) -> None:
    """A step on the shallow size alone lowers the loss of the physically cut model; pre-norm families have oracles too."""
    model = families.pipeline(families.CONFIGS[name](), tmp_path / "weights", pooling="mean", dense=None, normalize=False)
    size = Size(2, 16)
    before = ranking_loss(model, size)
    train(model, MultiSizeLoss(model, mnrl(model), [size]), tmp_path / "run", max_steps=5, learning_rate=1e-3)
    assert ranking_loss(model, size) < before
