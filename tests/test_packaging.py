"""The package as it is shipped: names, rooms and the fence around hosts, extras, wheel, README and citation."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import st_matryoshka2d
from st_matryoshka2d.errors import EXTRAS
from tests import ROOT

PACKAGE = Path(st_matryoshka2d.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def imported_by(statement: str) -> set[str]:
    """Return the modules that a statement imports in a new interpreter."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return set(done.stdout.split())


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


@functools.cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Every node of each file of the package."""
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in PACKAGE.rglob("*.py")}


# Reads the metadata of all that is installed, which takes a second.
distributions = functools.cache(importlib.metadata.packages_distributions)


def imports_of(path: Path) -> Iterator[str]:
    for node in nodes()[path]:
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_one_version() -> None:
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "st_matryoshka2d/__init__.py"
    assert importlib.metadata.version("st_matryoshka2d") == st_matryoshka2d.__version__
    assert f"## [{st_matryoshka2d.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("statement", ["import st_matryoshka2d", "from st_matryoshka2d import Size"])
def test_import_is_light(statement: str) -> None:
    heavy = {"torch", "transformers", "sentence_transformers", "datasets", "mteb", "matplotlib", "pandas", "numpy"}
    assert not heavy & imported_by(statement)


@pytest.mark.parametrize(("name", "more"), [("TokenTable", set()), ("OnnxEmbedder", {"onnxruntime"})])
def test_readers_of_files_need_few_packages(name: str, more: set[str]) -> None:
    loaded = imported_by(f"from st_matryoshka2d import {name}")
    assert loaded >= {"numpy", "tokenizers"} | more
    assert not {"onnx", "onnxscript", "google.protobuf", "flatbuffers", "packaging"} & loaded
    assert not {"torch", "transformers", "sentence_transformers", "huggingface_hub", "safetensors", "scipy", "tqdm"} & loaded


def test_help_imports_no_library_of_models() -> None:
    loaded = imported_by(
        "import sys\nsys.argv[1:] = ['--help']\nfrom st_matryoshka2d.cli.app import app\napp(standalone_mode=False)"
    )
    assert "typer" in loaded
    assert not {"torch", "numpy", "pandas", "rich"} & loaded


def test_results_need_neither_mteb_nor_matplotlib() -> None:
    loaded = imported_by("from st_matryoshka2d import GridResult; import st_matryoshka2d.grid.grid_result")
    assert "pandas" in loaded
    assert not {"mteb", "matplotlib", "jinja2", "torch"} & loaded


def test_public_names_of_package() -> None:
    calls = {"align", "asymmetric", "fit_queries", "heal", "load", "sizes_ladder", "truncate"}
    calls |= {"encode_sizes", "encode_to_parquet"}
    measures = {"benchmark_latency", "plot_speedup"}
    scores = {"evaluate", "evaluate_truncations", "coordinate_spread", "GridEvaluator"}
    tasks = {"sts_task", "pair_task", "retrieval_task", "classification_task"}
    cards = {"add_to_model_card"}
    results = {"GridResult", "TruncationResult", "CoordinateSpread", "GridComparison", "Recommendation"}
    graphs = {"export_onnx", "OnnxEmbedder"}
    objects = {"Size", "SizesEncoder", "TokenTable", "TruncatedTransformer", "DataWarning", "UsageError"}
    assert set(st_matryoshka2d.__all__) == objects | calls | measures | scores | tasks | cards | results | graphs


def test_every_public_name_resolves() -> None:
    for name in st_matryoshka2d.__all__:
        assert getattr(st_matryoshka2d, name).__name__ == name
    assert set(st_matryoshka2d.__all__) <= set(dir(st_matryoshka2d))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = st_matryoshka2d.no_such_name


def test_every_module_imports_and_defines_its_names() -> None:
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        missing = [name for name in getattr(module, "__all__", []) if not hasattr(module, name)]
        assert not missing, f"{module.__name__}.__all__ names {missing}"


# From the ground up: a room imports from those before it alone. The hall is what stands beside the
# rooms.
OF_MODELS = ("_hosts", "hall", "files", "model", "vocabulary", "cutting", "encoding", "hub", "corpora")
ABOVE = ("losses", "pretraining", "own_data", "evaluation", "model_card", "cli", "__main__", "__init__")
ROOMS = [*OF_MODELS, "plots", "report", "grid", "aligning", "healing", "queries", "exporting", *ABOVE]


def modules() -> dict[str, set[str]]:
    """The modules of the package, and what each imports of it, also in functions and for type checking."""
    found = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in nodes()}
    graph: dict[str, set[str]] = {}
    for name, path in found.items():
        graph[name] = set()
        for node in nodes()[path]:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("st_matryoshka2d"):
                base = (node.module or "").removeprefix("st_matryoshka2d").removeprefix(".")
                inside = {f"{base}.{one.name}".removeprefix(".") for one in node.names}
                graph[name] |= (inside & set(found)) or {base or "__init__"}
    return graph


def room(module: str) -> str:
    return module.split(".")[0] if "." in module or module.startswith("__") else "hall"


def test_a_room_imports_from_those_below_it() -> None:
    graph = modules()
    assert {room(module) for module in graph} == set(ROOMS)
    up = {
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others - {"__init__"}
        if ROOMS.index(room(other)) > ROOMS.index(room(module))
    }
    assert not up


def test_imports_have_no_cycles() -> None:
    list(TopologicalSorter({module: others - {"__init__"} for module, others in modules().items()}).static_order())


HOSTS = {"torch", "transformers", "sentence_transformers", "mteb", "huggingface_hub", "peft"}
OF_PYTHON = {"_fields", "_asdict", "_replace"}  # of named tuples


def test_private_names_of_hosts_stand_behind_the_fence() -> None:
    outside = {path: of_file for path, of_file in nodes().items() if path.parent.name != "_hosts"}
    every = [node for of_file in outside.values() for node in of_file]
    own = {node.name for node in every if isinstance(node, ast.FunctionDef)} | OF_PYTHON
    own |= {node.attr for node in every if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {node.id for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for path, of_file in outside.items():
        imports = [node for node in of_file if isinstance(node, ast.ImportFrom)]
        of_hosts = [node for node in imports if str(node.module).split(".")[0] in HOSTS]
        names = [name for node in of_hosts for name in [*str(node.module).split("."), *(one.name for one in node.names)]]
        names += [node.attr for node in of_file if isinstance(node, ast.Attribute) and node.attr not in own]
        used = {name for name in names if re.match(r"_[a-z]", name)}
        assert not used, f"{path.name} has {sorted(used)}"


def test_one_file_names_what_a_config_declares() -> None:
    named = {
        path.name
        for path, of_file in nodes().items()
        for node in of_file
        for name in (getattr(node, "attr", ""), getattr(node, "value", ""))
        if isinstance(name, str) and re.fullmatch(r"matryoshka_[a-z]+", name)
    }
    assert named == {"declaration.py"}


# Who asks what a model is: public functions and constructors, loading, what makes a pipeline of other
# modules, and what runs in each step of training, when a Trainer may have replaced modules.
DOORS = {
    *("align", "asymmetric", "cut_of", "evaluate", "encode_sizes", "fit_queries", "heal", "of", "_timed"),
    *("coordinate_spread", "evaluate_truncations", "__init__", "trainable_size", "_require_pooled_tokens"),
    *("_some_layers", "remade", "layer_features", "finish", "reaching_heads"),
}


def test_a_model_is_asked_once() -> None:
    asking = set()
    for function in (node for of_file in nodes().values() for node in of_file):
        if isinstance(function, ast.FunctionDef) and "Pipeline.of(" in ast.unparse(function.body):
            asking.add(function.name)
    assert asking <= DOORS


def test_imports_are_declared() -> None:
    used = {name for path in nodes() for name in imports_of(path)} - set(sys.stdlib_module_names)
    optional = {"peft", "jaxtyping"}  # for a model that has its layers; for annotations
    needed = requirement_names([dist for name in used - optional - {"st_matryoshka2d"} for dist in distributions()[name]])
    extras = PROJECT["project"]["optional-dependencies"]
    assert needed <= requirement_names(PROJECT["project"]["dependencies"]) | requirement_names(
        [one for extra in ("train", "eval", "plot", "report", "cli", "onnx") for one in extras[extra]]
    )


def test_each_library_of_an_extra_is_told_by_it() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for name, extra in EXTRAS.items():
        dists = requirement_names(distributions()[name])
        assert dists & requirement_names(extras[extra]), name


def test_whoever_cuts_and_embeds_needs_ten_packages() -> None:
    assert len(PROJECT["project"]["dependencies"]) <= 10


@pytest.mark.slow
def test_most_verbs_need_no_extra(tmp_path: Path) -> None:
    """In an environment without the libraries of the extras: links to all others."""
    # the two are sentence-transformers' own
    absent = (*(EXTRAS.keys() - {"joblib", "sklearn"}), "pytrec", "jaxtyping", "peft")
    for installed in Path(pytest.__file__).parents[1].iterdir():
        if not installed.name.lower().startswith(absent):
            (tmp_path / installed.name).symlink_to(installed)
    code = """
import st_matryoshka2d
from st_matryoshka2d import losses
for name in st_matryoshka2d.__all__:
    try:
        getattr(st_matryoshka2d, name)
    except ImportError as error:
        print(name, "|", error)
for room in ("pretraining", "report"):
    try:
        __import__(f"st_matryoshka2d.{room}")
    except ImportError as error:
        print(room, "|", error)
"""
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True, env=path)
    missing = dict(line.split(" | ") for line in done.stdout.splitlines())
    core = {"align", "asymmetric", "encode_sizes", "encode_to_parquet", "fit_queries", "heal", "load", "truncate"}
    core |= {"DataWarning", "Size", "SizesEncoder", "TokenTable", "TruncatedTransformer", "UsageError"}
    core |= {"add_to_model_card", "sizes_ladder"}
    assert set(missing) == {*st_matryoshka2d.__all__, "pretraining", "report"} - core
    extras = dict.fromkeys(("export_onnx", "OnnxEmbedder"), "onnx")
    extras |= {"plot_speedup": "plot", "pretraining": "train", "report": "report"}
    for name, told in missing.items():
        assert f"The extra [{extras.get(name, 'eval')}] of this package" in told


def test_constraints_pin_every_direct_requirement() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["project"]["optional-dependencies"]
    groups = [*extras.values(), *PROJECT["dependency-groups"].values(), PROJECT["project"]["dependencies"]]
    direct = requirement_names([one for group in groups for one in group]) - {"st-matryoshka2d"}
    assert direct <= requirement_names(list(pins))
    assert not [version for version in pins.values() if "+" in version]


def test_wheel_holds_the_whole_package(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    suffixes = {".py", ".typed", ".html"}
    here = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.suffix in suffixes}
    assert {"st_matryoshka2d/py.typed", "st_matryoshka2d/report/page.html"} <= here
    assert inside == here


LINK = re.compile(r"\]\(([^)]+)\)")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_of_a_release() -> str:
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    assert core.readme_content_type == "text/markdown"
    return core.readme


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {st_matryoshka2d.__version__}\n" in citation
    released = re.findall(r"date-released: (\S+)", citation)
    assert f"## [{st_matryoshka2d.__version__}] - {released[0]}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = [target for target in LINK.findall(README) if not target.startswith("https:")]
    assert len(targets) > 10
    for target in targets:
        name, _, heading = target.partition("#")
        assert (ROOT / name).exists(), target
        headings = re.findall(r"^#+ (.+)$", Path(ROOT / name).read_text(encoding="utf-8"), re.M) if heading else []
        slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
        assert not heading or heading in slugs, target


def test_an_index_page_has_absolute_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_URL", "https://host/me/it/")
    text, tag = readme_of_a_release(), f"v{st_matryoshka2d.__version__}"
    assert all(target.startswith("https:") for target in LINK.findall(text))
    assert f"](https://host/me/it/blob/{tag}/docs/index.md)" in text
    assert re.findall(r"!\[[^\]]*\]\((.*)\)", text) == [f"https://host/me/it/raw/{tag}/docs/images/half.png"]
    assert 'pip install "st_matryoshka2d[all]"' in text
    assert "not on PyPI" not in text
    parts = [re.sub(r"(?s)\n## Install\n.*?\n\n(?=Without a GPU)", "", LINK.sub("", one)) for one in (text, README)]
    assert parts[0] == parts[1]
    urls = ProjectMetadata(str(ROOT), PluginManager()).core.urls
    assert urls["Repository"] == "https://host/me/it"


def test_without_an_address_links_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROJECT_URL", raising=False)
    assert readme_of_a_release() == README
    assert not ProjectMetadata(str(ROOT), PluginManager()).core.urls
