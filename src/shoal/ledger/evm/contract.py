"""The compiled contract, cached per version of its source."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from shoal.errors import LedgerError
from shoal.extras import require
from shoal.files import cache_dir, write_whole

SOURCE = Path(__file__).with_name("contract.vy")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a chain is given, and what is then found on it: `runtime`, followed by the terms."""

    abi: list[dict[str, Any]]
    bytecode: str
    runtime: str


@lru_cache(maxsize=1)
def compiled() -> Compiled:
    source = SOURCE.read_text()
    cached = cache_dir() / "contracts" / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.json"
    if cached.is_file():
        return Compiled(**json.loads(cached.read_bytes()))
    require("chain", "contract of a ledger", LedgerError)
    from vyper import compile_code

    tree = compile_code(source, output_formats=["abi", "bytecode", "bytecode_runtime"])
    fresh = Compiled(tree["abi"], tree["bytecode"], tree["bytecode_runtime"])
    write_whole(cached, json.dumps({"abi": fresh.abi, "bytecode": fresh.bytecode, "runtime": fresh.runtime}).encode())
    return fresh
