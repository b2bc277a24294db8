"""The typed tree that describes a run: every setting with its type, bounds, default and meaning. Values are frozen.

`run.py` has the root, the other files its tables; `config_io` reads it, and `docs/config.md` is generated from it.
"""

from shoal.config.audit import MAX_VALIDATORS, AuditConfig, ThresholdsConfig
from shoal.config.ledger import PLANTS, LedgerConfig
from shoal.config.log import LogConfig, TensorBoardConfig, TrackioConfig, WandbConfig
from shoal.config.model import ModelConfig, NoiseName, SamplingConfig, TinyConfig, TurnsConfig
from shoal.config.run import RunConfig
from shoal.config.swarm import KeepConfig, SwarmConfig
from shoal.config.table import IN_WORDS, MAY_BE_CUDA, RUN_NAME, DeviceName, DeviceTable
from shoal.config.tasks import (
    CodeConfig,
    LengthConfig,
    RewardConfig,
    SamplerConfig,
    SolveRateConfig,
    TaskConfig,
)
from shoal.config.train import EvalConfig, LoraConfig, TrainConfig, WatchConfig
from shoal.config.workers import CheaterConfig, EngineName, WorkerConfig

__all__ = [
    "IN_WORDS",
    "MAX_VALIDATORS",
    "MAY_BE_CUDA",
    "PLANTS",
    "RUN_NAME",
    "AuditConfig",
    "CheaterConfig",
    "CodeConfig",
    "DeviceName",
    "DeviceTable",
    "EngineName",
    "EvalConfig",
    "KeepConfig",
    "LedgerConfig",
    "LengthConfig",
    "LogConfig",
    "LoraConfig",
    "ModelConfig",
    "NoiseName",
    "RewardConfig",
    "RunConfig",
    "SamplerConfig",
    "SamplingConfig",
    "SolveRateConfig",
    "SwarmConfig",
    "TaskConfig",
    "TensorBoardConfig",
    "ThresholdsConfig",
    "TinyConfig",
    "TrackioConfig",
    "TrainConfig",
    "TurnsConfig",
    "WandbConfig",
    "WatchConfig",
    "WorkerConfig",
]
