"""Why there are no contact forces (`cfrc_ext`) here: neither in an observation nor in a reward.

Gymnasium calls `mj_rnePostConstraint` on every world after the last physics step. `mujoco.batch.Batch` does not, and a
sensor that makes MuJoCo compute them within the step does so at the first stage of the Runge-Kutta integrator, not at
the last as Gymnasium's call does. Rather than other numbers under the same name there are none.
"""

from __future__ import annotations

from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["refuse_contact_forces"]


def refuse_contact_forces(entry_point: str, weight_name: str, weight: float, observed: bool) -> None:
    """InvalidInput if a task is asked for contact forces; `entry_point` is Gymnasium's class, which has them."""
    wrong = [
        FieldViolation(f"environment.kwargs.{name}", f"must be {right}: contact forces are not computed here")
        for name, asked, right in (
            ("include_cfrc_ext_in_observation", observed, "false"),
            (weight_name, weight != 0, "0"),
        )
        if asked
    ]
    if wrong:
        hint = f"for Gymnasium's own, in processes, name the entry_point {entry_point} instead of the id"
        raise InvalidInput("; ".join([*map(str, wrong), hint]), violations=wrong)
