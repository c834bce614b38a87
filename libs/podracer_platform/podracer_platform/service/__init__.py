"""The start and end of every service process, its telemetry and its build; no torch.

process       settings, logs, telemetry and everything from `python -m` until the service serves;
              the build of this process, and the builds it is compatible with
otlp          spans and metrics to a collector or to Prometheus
lifetime      a process ends with its parent, or on a signal
supervision   a child process that is kept running
warm_start    services forked from a server that has torch imported: warm_start_server
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.service import lifetime, warm_start
    from podracer_platform.service.process import (
        PROTOCOL,
        REVISION_VARIABLE,
        describe_build,
        is_compatible,
        own_build,
        require_same_build,
    )
    from podracer_platform.service.lifetime import (
        PARENT_VARIABLE,
        exit_with_parent_if_asked,
        stop_event_on_signals,
        unless,
    )
    from podracer_platform.service.process import (
        ControlSettings,
        PodSettings,
        ServiceSettings,
        TelemetryOptions,
        announce,
        main,
        run_service,
        telemetry,
    )
    from podracer_platform.service.supervision import (
        End,
        SupervisedProcess,
        describe_exit,
        start_child,
    )
else:
    __all__, __getattr__ = exports(__name__)
