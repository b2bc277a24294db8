"""Tables of the sinks that metrics go to."""

from typing import Literal

from pydantic import Field

from shoal.config.table import Table


class TensorBoardConfig(Table):
    """Curves as TensorBoard event files; needs `pip install 'shoal-rl[tensorboard]'`."""

    dir: str = Field(
        "", description="Directory in which the run gets a folder of its own; if empty, RUN/sinks/tensorboard."
    )


class WandbConfig(Table):
    """Curves to Weights & Biases; needs `pip install 'shoal-rl[wandb]'` and, unless offline, a login."""

    project: str = Field("shoal", min_length=1, max_length=128, description="Project that the run belongs to.")
    entity: str = Field("", description="User or team; if empty, the default of the login.")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: files in RUN/sinks/wandb, which `wandb sync` sends later."
    )


class TrackioConfig(Table):
    """Curves to trackio, in files on this machine; needs `pip install 'shoal-rl[trackio]'`."""

    project: str = Field("shoal", min_length=1, max_length=128, description="Project that the run belongs to.")
    dir: str = Field("", description="Directory of trackio's files (TRACKIO_DIR); if empty, RUN/sinks/trackio.")


class LogConfig(Table):
    """Where metrics go besides the run's own files, each from a process of its own that no role waits for."""

    prometheus: int = Field(
        0, ge=0, le=65535, description="Port on 127.0.0.1 at which Prometheus finds /metrics of all roles; 0: none."
    )
    tensorboard: TensorBoardConfig | None = Field(None, description="TensorBoard.")
    wandb: WandbConfig | None = Field(None, description="Weights & Biases.")
    trackio: TrackioConfig | None = Field(None, description="trackio.")
