"""Read one route of a saved `Router`, and no file of the others."""

from __future__ import annotations

from typing import Any

from sentence_transformers.base.modules import Router


def only(route: str) -> type[Router]:
    """Return a `Router` class whose `load` reads the modules of one route."""

    class OnlyRoute(Router):
        @classmethod
        def load_config(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            config = super().load_config(*args, **kwargs)
            modules = config["structure"][route]
            types = {name: kind for name, kind in config["types"].items() if name in modules}
            return {**config, "types": types, "structure": {route: modules}, "parameters": {"default_route": route}}

    return OnlyRoute
