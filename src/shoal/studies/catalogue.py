"""All studies by name."""

from shoal.errors import ConfigError
from shoal.studies.async_levels import AsyncStudy
from shoal.studies.boundary import BoundaryStudy
from shoal.studies.cheaters import CheatersStudy
from shoal.studies.clip import ClipStudy
from shoal.studies.filters import FiltersStudy
from shoal.studies.in_flight import StalenessStudy
from shoal.studies.length import LengthStudy
from shoal.studies.stability import StabilityStudy
from shoal.studies.study import Study
from shoal.studies.wall_time import SpeedStudy

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        AsyncStudy(),
        BoundaryStudy(),
        SpeedStudy(),
        ClipStudy(),
        StabilityStudy(),
        FiltersStudy(),
        LengthStudy(),
        CheatersStudy(),
        StalenessStudy(),
    )
}


def find_study(name: str) -> Study:
    if name not in STUDIES:
        raise ConfigError(f"study {name}: unknown; give one of {', '.join(STUDIES)}")
    return STUDIES[name]
