"""The display of jobs in a terminal or as JSON.

displays, table, comparison   live: log lines, JSON lines, a table; the jobs of an experiment
summary                       a job's figures at its end, and messages for `--json`
leaderboard                   candidates as text
output                        columns, JSON objects, numbers and hyperparameters as text
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.display.comparison import (
        ExperimentDisplay, JsonExperimentDisplay, axis_titles, choose_experiment_display,
        comparison_text, grouped_over_seeds, is_seed, settings,
    )
    from podracer_client.display.displays import (
        Display, JsonDisplay, PlainDisplay, present, progress_line, show_update,
    )
    from podracer_client.display.leaderboard import leaderboard_text, origin_text
    from podracer_client.display.output import (
        columns, count_text, differing_names, duration_text, evaluation_text, hyperparameters_text,
        interval_text, return_text, telling_names, value_text, write_json, write_table,
    )
    from podracer_client.display.summary import (
        TARGET_MISSED, JobSummary, candidate_json, capacity_json, evaluation_json, exit_code,
        job_json, missed_target, next_steps, path_text, program_words, result_word, retrained_text,
        target_lines,
    )
    from podracer_client.display.table import TableDisplay, agent_table
else:
    __all__, __getattr__ = exports(__name__)
