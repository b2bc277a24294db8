"""What an integrator is: the part of an action model that sees time."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

State = tuple[Tensor, ...]


class Integrator(nn.Module, ABC):
    """Turns embeddings into features, one per frame, that depend on this frame and earlier ones only.

    Pieces give what the whole gives: `forward` over a sequence equals `forward` over its parts in order, each with
    the state that the part before returned. States are tensors alone, so that gradients can be handed from part to
    part. A state may grow with time: the transformer's does, the recurrent ones do not.
    """

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state before the first frame; differentiable where it is learned."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Features of these frames, and the state after them."""
