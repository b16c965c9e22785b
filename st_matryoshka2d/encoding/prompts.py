"""Whether texts have the prompts that a model was trained with."""

from __future__ import annotations

from collections.abc import Iterable

from sentence_transformers import SentenceTransformer

_NAMED = 2


def without_prompts(model: SentenceTransformer, texts: Iterable[str]) -> str | None:
    """Tell which prompts the model declares if `encode` adds none to these texts and none has one; None if all is well."""
    prompts = {name: prompt for name, prompt in model.prompts.items() if prompt and prompt.strip()}
    if not prompts or model.default_prompt_name in prompts or any(text.startswith((*prompts.values(),)) for text in texts):
        return None
    named = ", ".join(f"{name!r}: {prompt!r}" for name, prompt in list(prompts.items())[:_NAMED])
    more = ", ..." if len(prompts) > _NAMED else ""
    return (
        f"The model declares prompts ({named}{more}), but the texts have none. Pass the texts as they will be embedded: "
        f"[model.prompts[{next(iter(prompts))!r}] + text for text in texts]."
    )
