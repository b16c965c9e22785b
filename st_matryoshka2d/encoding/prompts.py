"""Which prompt texts get, and whether they have those that a model was trained with."""

from __future__ import annotations

from collections.abc import Iterable

from sentence_transformers import SentenceTransformer

from st_matryoshka2d.errors import UsageError

_NAMED = 2


def chosen_prompt(model: SentenceTransformer, prompt: str | None, prompt_name: str | None) -> str | None:
    """Return what `encode` puts in front of each text with these keywords; refuse a name that the model does not have."""
    if prompt is not None:
        return prompt
    if prompt_name is None:
        return None if model.default_prompt_name is None else model.prompts.get(model.default_prompt_name)
    if prompt_name not in model.prompts:
        raise UsageError(f"The model has no prompt {prompt_name!r}, only {list(model.prompts)}.")
    return model.prompts[prompt_name]


def without_prompts(model: SentenceTransformer, texts: Iterable[str]) -> str | None:
    """Tell which prompts the model declares if none of these texts, which get none, has one; None if all is well."""
    prompts = {name: prompt for name, prompt in model.prompts.items() if prompt and prompt.strip()}
    if not prompts or any(text.startswith((*prompts.values(),)) for text in texts):
        return None
    named = ", ".join(f"{name!r}: {prompt!r}" for name, prompt in list(prompts.items())[:_NAMED])
    more = ", ..." if len(prompts) > _NAMED else ""
    names = list(dict.fromkeys([*prompts, *model.prompts]))[:_NAMED]  # a model may have none for documents
    parts = ", ".join(f"{name!r}: [...]" for name in names)
    return (
        f"The model declares prompts ({named}{more}), but the texts have none. Align with the prompt that texts will be "
        f"embedded with: prompt_name={names[0]!r}; or with the texts of each prompt: {{{parts}}}."
    )
