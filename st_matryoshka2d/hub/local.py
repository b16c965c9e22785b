"""Read some layers of local files, without the bytes of the other layers."""

from __future__ import annotations

from safetensors import safe_open
from torch import Tensor

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.hub.checkpoint import INDEX, Checkpoint
from st_matryoshka2d.hub.piece import names_kept
from st_matryoshka2d.hub.weights_fit import check_shapes, depth_of, lists_of, shapes_in
from st_matryoshka2d.model.layers import Cut


def read_layers(checkpoint: Checkpoint, cut: Cut) -> dict[str, Tensor]:
    """Read the tensors of a cut under their names in it, and check their shapes."""
    first = str(checkpoint.weights_in(checkpoint.transformer))
    if first.endswith(INDEX):
        homes = {name: checkpoint.within_transformer(shard) for name, shard in checkpoint.index(first).items()}
    else:
        homes = dict.fromkeys(shapes_in(checkpoint.fetch(first)), first)
    depth = depth_of(cut.whole, checkpoint.name, len(homes))
    names = names_kept(homes, lists_of(cut.whole, checkpoint.name), depth, cut.kept)
    tensors: dict[str, Tensor] = {}
    for path in {homes[name] for name in names}:
        file = checkpoint.fetch(path)
        inside = shapes_in(file).keys()  # refuses a broken file
        with safe_open(file, framework="pt") as opened:
            for name in (name for name in names if homes[name] == path):
                if name not in inside:
                    raise UsageError(f"{INDEX} puts {name} into {path}, which does not have it.")
                tensors[names[name]] = opened.get_tensor(name)
    places = list(range(cut.num_layers))
    what = f"{checkpoint.name} (with layers {cut.kept} as {places})"  # as an error names the latter
    check_shapes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, cut.config, what)
    return tensors
