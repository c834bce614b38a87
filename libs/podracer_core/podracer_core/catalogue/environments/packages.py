"""Known ids of packages that bring environments: what to install, and how to name such an id."""

from __future__ import annotations

import importlib.util
import re

_GAMES = (
    "Alien|Asteroids|BeamRider|Boxing|Breakout|Enduro|Freeway|MontezumaRevenge|MsPacman|Pong|Qbert"
    "|Seaquest"
)
_ATARI = rf"ALE/.*|\w+(NoFrameskip|Deterministic|-ram)\b.*|({_GAMES}|SpaceInvaders)-v\d"
_MUJOCO = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum|Pusher|Reacher"
    "|Swimmer|Walker2d"
)
_DRIVING = (
    "highway|merge|roundabout|parking|intersection|racetrack|exit|u-turn|two-way|lane-keeping"
)
_ROBOTICS = r"(Fetch|HandManipulate|HandReach|AntMaze|PointMaze|Adroit|FrankaKitchen)\w*"

_PACKAGES = (  # the id, the package to install, the module that registers it
    (_ATARI, "ale-py", "ale_py"),
    (r"(MiniGrid|BabyAI)-.*", "minigrid", "minigrid"),
    (rf"({_DRIVING})(-[a-z]+)*-v\d", "highway-env", "highway_env"),
    (rf"{_ROBOTICS}-v\d", "gymnasium-robotics", "gymnasium_robotics"),
    (r"dm_control/.*", "'shimmy[dm-control]'", "shimmy"),
)
_SENTENCES = (
    (rf"({_MUJOCO})-v[0-4]", "MuJoCo's tasks are here in version 5: {name}-v5"),
    (
        r"\w+BulletEnv-v\d",
        "PyBullet's environments are of the former gym; MuJoCo's are here, such as HalfCheetah-v5",
    ),
    (
        r"(Mlp|Cnn|MultiInput)\w*Policy",
        "the environment comes first, and the network follows from its spaces",
    ),
    ("StockTrading-v0", "pip install podracer-trading"),
)


def package_advice(environment_id: str) -> str:
    """What to do about an id that is not registered; empty if no known package has it."""
    for pattern, sentence in _SENTENCES:
        if re.fullmatch(pattern, environment_id):
            return sentence.format(name=environment_id.rpartition("-v")[0])
    for pattern, package, module in _PACKAGES:
        if re.fullmatch(pattern, environment_id):
            named = f"name it {module}:{_current(environment_id, module)}"
            return (
                named if importlib.util.find_spec(module) else f"pip install {package}, and {named}"
            )
    return ""


def install_advice(module: str) -> str:
    """How to install a missing `module` that registers environments; empty for another one."""
    return next(
        (f"pip install {package}" for _, package, known in _PACKAGES if known == module), ""
    )


def _current(environment_id: str, module: str) -> str:
    """The id as its package has it now: `ALE/Breakout-v5` for `BreakoutNoFrameskip-v4`."""
    game = re.match(r"(?!ALE/)[A-Z][A-Za-z]*?(?=NoFrameskip|Deterministic|-)", environment_id)
    return f"ALE/{game[0]}-v5" if game and module == "ale_py" else environment_id
