"""The suites that INTELLECT-2 was measured by, from files in the cache: AIME24, AIME25, GPQA-Diamond, IFEval
and LiveCodeBench. `shoal suites --fetch NAME` puts a file there; one that is put there by hand does as well.

Each file is pinned: by the revision of the repository that holds it and by its own hash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError
from shoal.files import cache_dir

HUB = "https://huggingface.co/datasets"
GITHUB = "https://raw.githubusercontent.com"
LIVECODEBENCH = f"{HUB}/livecodebench/code_generation_lite/resolve/0fe84c3912ea0c4d4a78037083943e8f0c4dd505"


@dataclass(frozen=True, slots=True)
class Remote:
    """A file somewhere, and the hash that it must have."""

    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PaperSuite:
    """A suite whose questions are in a file: how the file is called here, and how answers are drawn."""

    name: str
    kind: str
    """Kind of the source, which decides how answers are judged."""
    file: str
    parts: tuple[Remote, ...]
    """What the file is made of."""
    dates: tuple[str, str] | None = None
    """Of contest problems, those published from the first day to the last are kept."""
    extra: tuple[Remote, str] | None = None
    """An archive that judging needs besides, and the folder of the cache that it is unpacked into."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the file is looked for."""
        return data_folder() / self.file

    def source(self) -> dict[str, Any]:
        """The suite's one source, as a config has it; ConfigError where its file is missing."""
        if not self.path.is_file():
            raise ConfigError(
                f"--suite {self.name}: {self.path} is not there; copy it there or, where there is a network, run: "
                f"shoal suites --fetch {self.name}"
            )
        return {"source": f"{self.kind}/{self.path}", "name": self.name} | dict(self.settings.get("source", {}))


def data_folder() -> Path:
    """The cache's folder of files of suites."""
    return cache_dir() / "evals"


LONG = {"max_new_tokens": 32768, "max_prompt_tokens": 8192, "temperature": 0.6}
PAPER_SUITES = {
    suite.name: suite
    for suite in (
        PaperSuite(
            "aime24",
            "aime",
            "aime24.parquet",
            (
                Remote(
                    f"{HUB}/HuggingFaceH4/aime_2024/resolve/2fe88a2f1091d5048c0f36abc874fb997b3dd99a/"
                    "data/train-00000-of-00001.parquet",
                    "26139847601a5037c237d5928b195e7260ca8074cf4f264b794af42847f79ccf",
                ),
            ),
            settings=LONG | {"samples": 16},
        ),
        PaperSuite(
            "aime25",
            "aime",
            "aime25.jsonl",
            (
                Remote(
                    f"{HUB}/math-ai/aime25/resolve/563bb8404243c5f09de6ec262f2db674fe5bce9b/test.jsonl",
                    "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331",
                ),
            ),
            settings=LONG | {"samples": 16},
        ),
        PaperSuite(
            "gpqa-diamond",
            "gpqa",
            "gpqa_diamond.csv",
            (
                Remote(
                    "https://openaipublic.blob.core.windows.net/simple-evals/gpqa_diamond.csv",
                    "41d1213cd7a4998605a26c2798500652572007161b3a92817ba46b35befcd305",
                ),
            ),
            settings=LONG | {"samples": 4},
        ),
        PaperSuite(
            "ifeval",
            "ifeval",
            "ifeval.jsonl",
            (
                Remote(
                    f"{HUB}/google/IFEval/resolve/966cd89545d6b6acfd7638bc708b98261ca58e84/ifeval_input_data.jsonl",
                    "6a85310ca8ce15eff755aa08a3a4ff931c7e273e7515ebb3c492ea85fd8288f2",
                ),
            ),
            extra=(
                Remote(
                    f"{GITHUB}/nltk/nltk_data/4f15a3d89eefe9748ec1c05be495d91289197155/packages/tokenizers/punkt_tab.zip",
                    "e57f64187974277726a3417ca6f181ec5403676c717672eef6a748a7b20e0106",
                ),
                "nltk_data/tokenizers",
            ),
            settings={"max_new_tokens": 1280, "max_prompt_tokens": 8192, "temperature": 0.0, "samples": 1},
        ),
        PaperSuite(
            "livecodebench",
            "livecodebench",
            "livecodebench.jsonl",
            (
                Remote(
                    f"{LIVECODEBENCH}/test.jsonl", "2bd02b38beb48e8c46b5b9987095d999ff38cd8efc255ea5d58974317c48f63f"
                ),
                Remote(
                    f"{LIVECODEBENCH}/test2.jsonl", "095df7c5daf15f882c51a9deb84085cff1e073495a5dbcf95015a564d485f3a3"
                ),
                Remote(
                    f"{LIVECODEBENCH}/test3.jsonl", "28ed26cc83363ce3f1fe2d5fad9f8393077beb1907b167a31bd3b32f80801b79"
                ),
                Remote(
                    f"{LIVECODEBENCH}/test4.jsonl", "d711138ddaebfcf5f8ec6a4283ee677298c0f5c5d374a235af92aaf0584510da"
                ),
                Remote(
                    f"{LIVECODEBENCH}/test5.jsonl", "7f77571c2a6df0c2a72a3277650309f67e01e0008e18117e624633df53f81214"
                ),
            ),
            dates=("2024-08-01", "2025-01-31"),
            settings=LONG | {"samples": 4, "source": {"code": {"seconds": 6.0, "memory_mb": 4096, "output_kb": 65536}}},
        ),
    )
}
