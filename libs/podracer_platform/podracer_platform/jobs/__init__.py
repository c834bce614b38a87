"""The specification of a job; no torch.

spec          the job. Mistakes are found before the job is created
sections      those that `podracer_core.sections` lacks: environment, data, continuous, retrain,
              warm_start
job_file      job.yaml -> JobSpec, or an experiment: a file that makes several jobs
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.jobs.sections import CONFIRMING, broken_episodes, counted
    from podracer_platform.jobs.job_file import (
        EXPERIMENT_LABEL,
        Experiment,
        axis_label,
        load_experiment,
        load_job_file,
        parse_experiment,
        parse_job,
    )
    from podracer_platform.jobs.sections import (
        Beginnings,
        Continuous,
        DataSets,
        Founder,
        NamedDataSet,
        Retrain,
        WarmStart,
        check_environment,
    )
    from podracer_platform.jobs.spec import (
        JobSpec,
        check_size,
        shortened_rounds,
        validate,
        validate_competition,
        validate_spaces,
    )
else:
    __all__, __getattr__ = exports(__name__)
