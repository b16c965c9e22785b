"""Fast tokenizers of every kind, trained on a few sentences, and random texts for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BatchEncoding, PreTrainedTokenizerFast

_SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and nobody wonders why.",
    "Masked auto-encoding hides whole words; what's left has to tell them.",
    "She doesn't know that 1984 was written in 1948, nor that it cost £12.50!",
    "Where are the encoders, decoders and tokenizers of yesterday's conference?",
    "A café in Zürich serves crème brûlée (naïvely) at 7:45 every Wednesday.",
    "I'll say it again: they've walked, talked, jumped and wondered endlessly.",
    "Understanding representation learning needs patience, data & some luck.",
    "In 2023, 3,141 researchers downloaded pre-trained models 27 times each.",
    "Большая языковая модель читает книги каждый день.",
    "東京は日本の首都です。私は毎日本を読みます。",
    "我们今天去北京看长城。",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
]
# Some characters do not occur in the sentences above.
_PIECES = """
the fox jumps understanding representation encoders conference wondered endlessly tokenizers doesn't I'll they've what's
café Zürich brûlée naïvely 1984 3,141 £12.50 7:45 pre-trained dog. (lazy) 😀 👍🏽 модель языковая 東京は日本 北京看长城
ภาษาไทย … — unheardofness qwxzyv e\u0301te\u0301 A&B ,, ?! "quoted"
"""


def texts(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Return random sequences of words, names, numbers, punctuation, accents, Cyrillic, CJK, Thai and emoji."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(_PIECES.split(), k=draw.randint(1, longest))) for _ in range(count)]


def between_spaces(text: str, encoded: BatchEncoding) -> list[int]:
    """Return each token's index in `text.split(" ")`; -1 for special tokens."""
    spaces = list(accumulate(character == " " for character in text))
    chars = [encoded.token_to_chars(position) for position in range(len(encoded.tokens()))]
    return [-1 if span is None else int(spaces[max(span.start, span.end - 1)]) for span in chars]


def _special(style: str) -> dict[str, str]:
    if style == "bert":
        return {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}


def _trained(
    model: models.Model, trainer: trainers.Trainer, style: str, more: str = "", **parts: object
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator([*_SENTENCES * 3, more], trainer)
    special = _special(style)
    begin, end = special["cls_token"], special["sep_token"]
    ids = [(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    pair = f"{begin} $A {end} $B {end}" if style == "bert" else f"{begin} $A {end} {end} $B {end}"
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin} $A {end}", pair=pair, special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special)


def wordpiece(**parts: object) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer like BERT's."""
    trainer = trainers.WordPieceTrainer(
        vocab_size=450, special_tokens=[*_special("bert").values()], show_progress=False, continuing_subword_prefix="##"
    )
    parts = {
        "normalizer": normalizers.BertNormalizer(),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.WordPiece(),
    } | parts
    return _trained(models.WordPiece(unk_token="[UNK]"), trainer, "bert", **parts)


def byte_level() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer like RoBERTa's."""
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*_special("roberta").values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained(models.BPE(), trainer, "roberta", pre_tokenizer=before, decoder=decoders.ByteLevel())


def unigram() -> PreTrainedTokenizerFast:
    """A unigram tokenizer like XLM-R's."""
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=[*_special("xlm-r").values()], unk_token="<unk>", show_progress=False
    )
    return _trained(
        models.Unigram(),
        trainer,
        "xlm-r",
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
    )


def end_of_word() -> PreTrainedTokenizerFast:
    """A BPE tokenizer like HerBERT's, which marks the end of words."""
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*_special("xlm").values()], end_of_word_suffix="</w>", show_progress=False
    )
    return _trained(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainer,
        "xlm",
        more=_PIECES,  # an unknown word end has no mark
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.BPEDecoder(suffix="</w>"),
    )


def word_level() -> PreTrainedTokenizerFast:
    """A word-level tokenizer without a decoder."""
    trainer = trainers.WordLevelTrainer(special_tokens=[*_special("bert").values()], show_progress=False)
    return _trained(models.WordLevel(unk_token="[UNK]"), trainer, "bert", pre_tokenizer=pre_tokenizers.BertPreTokenizer())


def without_template() -> PreTrainedTokenizerFast:
    """A tokenizer that adds no special tokens."""
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return tokenizer


def long_template() -> PreTrainedTokenizerFast:
    """A tokenizer with three special tokens before a text and two after it, one of them added after training."""
    tokenizer = wordpiece()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[EN]"]})
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]", "[EN]")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] [EN] [SEP] $A [EN] [SEP]", pair="[CLS] $A [SEP] $B", special_tokens=ids
    )
    return tokenizer


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "WordPiece": wordpiece,
    "byte-level BPE": byte_level,
    "Unigram": unigram,
    "BPE with </w>": end_of_word,
    "WordPiece without decoder": lambda: wordpiece(decoder=None),
    "WordLevel": word_level,
    "without template": without_template,
    "long template": long_template,
}
