"""`truncate`: cut a model to a size and save it."""

from __future__ import annotations

from typing import Annotated

from st_matryoshka2d.cli import hub, options
from st_matryoshka2d.cli.command import Answer
from st_matryoshka2d.sizes import Size


def truncate(
    model: options.Model,
    size: Annotated[Size, options.size_option("Layers and dimensions to keep, such as 6L-128d.", show_default=False)],
    out: hub.Out = None,
    push: hub.Push = None,
    private: hub.Private = False,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    revision: options.Revision = None,
    token: options.Token = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Cut a model to a size; the cut is a plain checkpoint that loads without this package."""
    hub.check_places(out, push, private, token)
    hub.require_model(model, revision, token)

    from st_matryoshka2d import load

    with hub.fetching(model, revision):
        cut = load(model, size, device=device, trust_remote_code=trust_remote_code, revision=revision, token=token)
    places = hub.saved(cut, out, push, private, token)
    parameters = sum(weight.numel() for weight in cut.parameters())
    return Answer(
        [f"{size}: {parameters:,} parameters", *hub.place_lines(places)],
        {"size": str(size), "num_layers": size.num_layers, "dim": size.dim, "parameters": parameters, **places},
        as_json,
    )
