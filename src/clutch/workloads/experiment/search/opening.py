"""The search method of a spec. What cannot be searched is refused here, with the place where it stands."""

from __future__ import annotations

from clutch.wire.experiments import AdaptiveAsha, Asha, Custom, ExperimentSpec, Grid, Pbt, RandomSearch, Single, Tpe
from clutch.workloads.experiment.search.adaptive_asha import AdaptiveAshaMethod, AshaMethod
from clutch.workloads.experiment.search.base import SearchMethod
from clutch.workloads.experiment.search.custom import CustomMethod
from clutch.workloads.experiment.search.grid import GridMethod
from clutch.workloads.experiment.search.pbt import PbtMethod
from clutch.workloads.experiment.search.random_search import RandomMethod
from clutch.workloads.experiment.search.single import SingleMethod


def method_for(spec: ExperimentSpec) -> SearchMethod:
    """``BadRequest`` names the setting that no search can work with."""
    match spec.search.method:
        case Single():
            return SingleMethod(spec)
        case RandomSearch() as method:
            return RandomMethod(spec, method)
        case Grid() as method:
            return GridMethod(spec, method)
        case Asha() as method:
            return AshaMethod(spec, method)
        case AdaptiveAsha() as method:
            return AdaptiveAshaMethod(spec, method)
        case Pbt() as method:
            return PbtMethod(spec, method)
        case Custom() | Tpe() as method:
            return CustomMethod(spec, method)
