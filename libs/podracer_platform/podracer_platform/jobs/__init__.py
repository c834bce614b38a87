"""The specification of a job; no torch.

spec          the job; beside the sections of `podracer_core.sections`, a module per section has its
              fields, defaults and checks. Mistakes are found before the job is created
environment, continuous, warm_start    these sections
evaluations   what the message of an evaluation counts for
job_file      job.yaml -> JobSpec; matrix, experiment: a file that makes several jobs
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.jobs.continuous import Continuous, Retrain
    from podracer_platform.jobs.environment import DataSets, NamedDataSet, check_environment
    from podracer_platform.jobs.evaluations import CONFIRMING, broken_episodes, counted
    from podracer_platform.jobs.experiment import (
        EXPERIMENT_LABEL, Experiment, axis_label, load_experiment, parse_experiment,
    )
    from podracer_platform.jobs.job_file import load_job_file, parse_job
    from podracer_platform.jobs.spec import (
        JobSpec, check_size, shortened_rounds, validate, validate_competition, validate_spaces,
    )
    from podracer_platform.jobs.warm_start import Beginnings, Founder, WarmStart
else:
    __all__, __getattr__ = exports(__name__)
