"""Tables of public data sets on the Hub, each at one revision."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from datasets import ClassLabel, get_dataset_config_names, get_dataset_split_names, load_dataset
from huggingface_hub import HfApi, hf_hub_download

__all__ = ["Hub"]


class Hub:
    """Reads tables, and remembers the revision of each repository.

    Args:
        revisions: Revisions by repository. The others are those of today, resolved when a
            repository is first read.
    """

    def __init__(self, revisions: Mapping[str, str]) -> None:
        self.revisions = dict(revisions)

    def table(self, repository: str, *splits: str, config: str = "default") -> pd.DataFrame:
        """Return the first of these splits that there is; a column of class numbers gets another with their names."""
        revision = self._revision(repository)
        there = get_dataset_split_names(repository, config, revision=revision)
        split = next((name for name in splits if name in there), None)
        if split is None:
            raise ValueError(f"{repository} ({config}) has the splits {', '.join(there)}, but not {' or '.join(splits)}.")
        data = load_dataset(repository, config, split=split, revision=revision)
        frame: pd.DataFrame = data.to_pandas()
        classes = {name: kind for name, kind in data.features.items() if isinstance(kind, ClassLabel)}
        for name, kind in classes.items():
            frame[f"{name}_text"] = frame[name].map(kind.int2str)
        return frame

    def configs(self, repository: str) -> list[str]:
        """Name the configurations of a repository."""
        return list(get_dataset_config_names(repository, revision=self._revision(repository)))

    def file(self, repository: str, name: str) -> pd.DataFrame:
        """Return a CSV file that belongs to no configuration."""
        return pd.read_csv(hf_hub_download(repository, name, repo_type="dataset", revision=self._revision(repository)))

    def _revision(self, repository: str) -> str:
        if repository not in self.revisions:
            self.revisions[repository] = str(HfApi().dataset_info(repository).sha)
        return self.revisions[repository]
