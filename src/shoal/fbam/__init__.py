"""Frame-based action models: a screen per step goes in, an action per step comes out, and state is carried in between.

Usable alone, as `shoal.toploc` and `shoal.shardcast` are: nothing here knows of runs, leases or versions.
`docs/fbam.md` says what is known of the paper, what is ours, and what was measured.
"""

from shoal.fbam.action_model import ActionModel, build_model, count_parameters
from shoal.fbam.frames import FrameShape, Stream, TensorStream
from shoal.fbam.gradient import Loss, evaluate_stream, full_gradient, streamed_gradient, truncated_gradient
from shoal.fbam.model_config import PUBLISHED, PUBLISHED_PARAMETERS, ModelConfig

__all__ = [
    "PUBLISHED",
    "PUBLISHED_PARAMETERS",
    "ActionModel",
    "FrameShape",
    "Loss",
    "ModelConfig",
    "Stream",
    "TensorStream",
    "build_model",
    "count_parameters",
    "evaluate_stream",
    "full_gradient",
    "streamed_gradient",
    "truncated_gradient",
]
