"""Tables of the machines that generate, honest or not."""

from typing import Annotated, Literal

from pydantic import Field

from shoal.config.table import SERVER_URL, DeviceName, Positive, Table, Threads

Batch = Annotated[int, Field(ge=1, le=65536)]
EngineName = Literal["auto", "torch", "vllm", "vllm-server"]


class WorkerConfig(Table):
    """The machines that generate."""

    count: int = Field(1, ge=1, le=1024, description="Workers started by shoal run.")
    threads: Threads = Field(1, description="CPU threads per worker.")
    device: DeviceName | None = Field(
        None, description="Device of the workers started by shoal run; default: the run's device."
    )
    max_batch: Batch = Field(128, description="Sequences generated at once.")
    batches: list[Batch] = Field(
        default_factory=list, description="max_batch for each worker of shoal run, if they differ."
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Number format that workers compute in; default: model.dtype."
    )
    server: str = Field(
        "",
        pattern=SERVER_URL,
        description='URL of the stock vLLM server of engine = "vllm-server", on this machine (docs/stock-server.md); '
        "needs audit.proofs = false. A machine that joins gives its own (--server).",
    )
    engine: EngineName = Field(
        "auto",
        description="What generates: our own engine (torch), vLLM, or a stock server of it (vllm-server). auto is vLLM "
        "where it is installed and the device is a CUDA one, torch elsewhere.",
    )
    engines: list[EngineName] = Field(
        default_factory=list, description="engine for each worker of shoal run, if they differ."
    )
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Devices that vLLM splits the model over; part of the node's profile."
    )
    kv_cache_gb: float | None = Field(
        None,
        gt=0,
        description="GiB per device for vLLM's KV cache. Default: on a CUDA device what max_batch answers take at "
        "their longest, or what is free if that is less; 1 on a CPU.",
    )
    groups_per_submission: Positive = Field(8, description="Groups per rollout file.")
    in_flight: bool = Field(
        False,
        description="Whether answers that are being generated go on with a new version when it comes, at one of at "
        "most 16 places, instead of ending with the version that they began with.",
    )
    lease_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after which an unfinished lease goes back to the pool. Default: three times what answers "
        "of full length take at the node's measured speed; for a node without accepted files, what they take at 200 "
        "tokens per second; at least 240.",
    )

    def batch_of(self, worker: int) -> int:
        return self.batches[worker] if worker < len(self.batches) else self.max_batch

    def engine_of(self, worker: int) -> EngineName:
        return self.engines[worker] if worker < len(self.engines) else self.engine


class CheaterConfig(Table):
    """A worker of this run that cheats, to see that it is caught."""

    attack: str = Field(description="How it cheats; shoal attacks lists the ways.")
