"""The settings of the loss: the table `[train.loss]` of a run's config.

Apart from `loss.py` so that reading a config does not import torch.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Family = Literal["two_sided", "cispo", "gspo", "dppo"]


class LossConfig(BaseModel):
    """The policy objective, how far a step may move the policy, and what keeps it near the base model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    family: Family = Field("two_sided", description="Policy objective; each family reads only the fields that name it.")

    # INTELLECT-2, arXiv:2505.07291: the ratio was seen above 100 where the advantage is negative.
    eps: float = Field(0.2, gt=0, lt=1, description="two_sided: the ratio is clipped to 1 - eps .. 1 + eps.")
    delta: float = Field(
        4.0, gt=1, description="two_sided and gspo: upper bound on the ratio if the advantage is negative."
    )

    # ScaleRL, arXiv:2510.13786, A.17.2: 4, 5 and 8 learn alike. MiniMax-M1, arXiv:2506.13585, gives no value.
    cispo_cap: float = Field(5.0, ge=1, description="cispo: largest importance weight of a token.")

    # GSPO, arXiv:2507.18071, section 5.1. ScaleRL (A.17.3) found 4e-3 and 5e-3 better for an 8B model.
    gspo_eps_low: float = Field(3e-4, gt=0, lt=1, description="gspo: how far a sample's ratio may fall below 1.")
    gspo_eps_high: float = Field(4e-4, gt=0, description="gspo: how far a sample's ratio may rise above 1.")

    # DPPO, arXiv:2602.04879, appendix E: 0.2 in four experiments of five, 0.15 in the fifth.
    dppo_low: float = Field(
        0.2, gt=0, le=1, description="dppo: largest loss of probability of a token with negative advantage."
    )
    dppo_high: float = Field(
        0.2, gt=0, le=1, description="dppo: largest gain of probability of a token with positive advantage."
    )

    # The paper truncates nothing, verl's DPPO at 20. This is cispo's cap, for a weight that does what cispo's does.
    dppo_cap: float = Field(5.0, ge=1, description="dppo: largest importance weight of a token.")

    # INTELLECT-2, arXiv:2505.07291.
    kl_coef: float = Field(
        0.001, ge=0, description="Weight of the KL divergence to the base model; 0: the base model is not needed."
    )
    entropy_coef: float = Field(1e-4, ge=0, description="Weight of the entropy bonus.")

    @model_validator(mode="after")
    def _delta_lies_beyond_the_clip(self) -> Self:
        if self.delta <= 1 + self.eps:
            raise ValueError(f"delta {self.delta} must exceed 1 + eps = {1 + self.eps}: raise delta or lower eps")
        return self
