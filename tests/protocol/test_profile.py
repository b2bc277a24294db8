"""A profile has one name, and rubbish is refused with the part, its value and the rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.models.this_machine import this_profile
from shoal.protocol.profile import EXAMPLE, MAX_NAME, NAME, Profile, slug


def test_a_name_and_its_profile_are_the_same_thing() -> None:
    profile = Profile.parse(EXAMPLE)
    assert (profile.hardware, profile.devices) == ("nvidia-h100-80gb-hbm3", 8)
    assert profile.name == EXAMPLE
    assert NAME.fullmatch(EXAMPLE)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("h100", "must be hardware/engine/attention/dtype/devices"),
        ("h100/vllm/flash/bfloat16/tp1/more", "must be hardware/engine"),
        ("H100/vllm/flash/bfloat16/tp1", "hardware 'H100' must be 1 to 48 lower-case"),
        ("h100/v llm/flash/bfloat16/tp1", "engine 'v llm' must be"),
        ("h100/vllm//bfloat16/tp1", "attention '' must be"),
        ("h100/vllm/../bfloat16/tp1", "attention '..' must be"),
        (f"h100/{'v' * 49}/flash/bfloat16/tp1", "engine 'vvv"),
        ("h100/vllm/flash/fp8/tp1", "dtype 'fp8' must be float32 or bfloat16"),
        ("h100/vllm/flash/bfloat16/tp0", "devices 'tp0' must be tp and the number"),
        ("h100/vllm/flash/bfloat16/tp01", "devices 'tp01' must be"),
        ("h100/vllm/flash/bfloat16/8", "devices '8' must be"),
        ("h100/vllm/flash/bfloat16/tp1\n", "devices"),
        ("h100\x1b[2J/vllm/flash/bfloat16/tp1", "hardware 'h100"),
    ],
)
def test_rubbish_is_refused_by_the_part_its_value_and_the_rule(name: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Profile.parse(name)
    assert fault in str(refused.value)
    assert "as in" in str(refused.value)
    assert str(refused.value).isprintable()


@given(st.text(max_size=300))
def test_any_text_makes_a_valid_part(text: str) -> None:
    parts = {"hardware": slug(text), "engine": "e", "attention": "a", "dtype": "bfloat16"}
    name = Profile.model_validate(parts).name
    assert Profile.parse(name).name == name
    assert len(name) <= MAX_NAME


def test_this_machine_has_a_profile_that_names_its_engine_and_format() -> None:
    profile = this_profile("bfloat16")
    assert Profile.parse(profile.name) == profile
    assert profile.engine.startswith("shoal-")
    assert (profile.dtype, profile.devices) == ("bfloat16", 1)
