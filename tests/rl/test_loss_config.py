import subprocess
import sys

import pytest
from pydantic import ValidationError

from shoal.rl.loss_config import LossConfig


def test_the_settings_can_be_read_without_torch() -> None:
    code = "import sys, shoal.rl.loss_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_defaults_are_those_of_the_intellect_2_run() -> None:
    config = LossConfig()
    assert (config.family, config.eps, config.delta, config.kl_coef) == ("two_sided", 0.2, 4.0, 0.001)


def test_every_setting_is_described() -> None:
    assert [name for name, field in LossConfig.model_fields.items() if not field.description] == []


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="kl_coeff"):
        LossConfig.model_validate({"kl_coeff": 0.1})


@pytest.mark.parametrize(
    "setting",
    [
        {"family": "ppo"},
        {"eps": 0.0},
        {"eps": 1.0},
        {"delta": 1.0},
        {"cispo_cap": 0.5},
        {"gspo_eps_low": 1.0},
        {"gspo_eps_high": 0.0},
        {"dppo_low": 1.1},
        {"dppo_high": 0.0},
        {"kl_coef": -0.1},
        {"entropy_coef": -0.1},
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(setting: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(setting))):
        LossConfig.model_validate(setting)


def test_a_delta_inside_the_clip_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"delta 1\.1 must exceed 1 \+ eps = 1\.2"):
        LossConfig(eps=0.2, delta=1.1)
