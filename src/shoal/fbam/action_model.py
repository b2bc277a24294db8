"""Action model: a frame head embeds each screen, an integrator carries state, a linear layer scores actions."""

import torch
from torch import Tensor, nn

from shoal.fbam.frame_head import FrameHead
from shoal.fbam.integrators import State, build_integrator
from shoal.fbam.model_config import ModelConfig


class ActionModel(nn.Module):
    """Scores the action after each frame from that frame and the state. Acting and training use the same state."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.head = FrameHead(config)
        same = config.head_width == config.width
        self.entry = nn.Identity() if same else nn.Linear(config.head_width, config.width, bias=False)
        self.integrator = build_integrator(config)
        self.to_actions = nn.Linear(config.width, config.actions, bias=False)

    def initial_state(self, batch: int) -> State:
        return self.integrator.initial_state(batch)

    def forward(self, frames_BTCRW: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits, batch x frames x actions, and the state after the last frame."""
        return self.integrate(self.embed(frames_BTCRW), state)

    def embed(self, frames_BTCRW: Tensor) -> Tensor:
        """Embeddings, batch x frames x head width: the part that needs no earlier frame."""
        x_ND: Tensor = self.head(frames_BTCRW.flatten(0, 1))
        return x_ND.view(*frames_BTCRW.shape[:2], -1)

    def integrate(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits and state from embeddings: the sequential part."""
        features_BTD, after = self.integrator(self.entry(x_BTD), state)
        return self.to_actions(features_BTD), after

    @torch.no_grad()
    def step(self, frame_BCRW: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits, batch x actions, after one more frame, for acting: the cost of a step of a recurrent integrator does
        not depend on how many came before."""
        before = self.initial_state(len(frame_BCRW)) if state is None else state
        logits_B1A, after = self(frame_BCRW[:, None], before)
        return logits_B1A[:, 0], after


def build_model(config: ModelConfig, seed: int) -> ActionModel:
    """A model with random weights that depend on the seed alone; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActionModel(config)


def count_parameters(config: ModelConfig) -> int:
    """How many numbers a model of this shape learns; nothing is allocated."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ActionModel(config).parameters())
