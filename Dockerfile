# The images of the six services, a target each; `make images` builds them all.
#
#   PYTHON       base image, the same for all
#   VARIANT      cpu or cuda: whether torch of learner, worker, evaluator and policy server has to have CUDA
#   TORCH_INDEX  package index of the wanted build of torch; unset: where pip looks for everything (on x86-64 a CUDA build)
#   REVISION     hash of the commit that is built

ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS python
RUN groupadd --gid 10001 podracer \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin podracer \
 && for role in orchestrator leaderboard learner worker evaluator policy client store database; do mkdir -p /secrets/roles/$role; done \
 && mkdir -p /data /shm /spool /cache \
 && chown -R 10001:10001 /secrets /data /shm /spool /cache
ENV PATH=/opt/podracer/bin:/opt/podracer/code/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# A virtual environment that also finds what lies in /opt/podracer/code: dependencies and our own code are layers apart.
FROM python AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY constraints.txt ./
RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/* \
 && python -m venv /opt/podracer \
 && echo /opt/podracer/code > "$(/opt/podracer/bin/python -c 'import site; print(site.getsitepackages()[0])')/podracer.pth" \
 && pip install --constraint constraints.txt --upgrade "setuptools>=77"
COPY libs/podracer_core/pyproject.toml libs/podracer_core/

FROM build AS code
COPY libs libs
COPY services services
RUN for part in libs/podracer_core libs/podracer_client services/*; do \
      pip install --no-deps --no-build-isolation --target "/code/${part##*/}" "./$part" || exit 1; \
    done

# What the services of the control plane need besides our code, made small: no torch, bytecode of what is imported only,
# libraries without debugging symbols. The command comes with the orchestrator, for secrets, tokens and jobs; without
# matplotlib it makes no reports. The leaderboard has no object store.
FROM build AS orchestrator-dependencies
COPY services/orchestrator/pyproject.toml services/orchestrator/
RUN pip install --no-compile --constraint constraints.txt \
      "./libs/podracer_core[database,telemetry]" "./services/orchestrator[kubernetes]" "psycopg[binary]" cryptography rich typer \
 && pip uninstall --yes podracer-core podracer-orchestrator setuptools pip \
 && find /opt/podracer/lib/python*/site-packages/grpc /opt/podracer/lib/python*/site-packages/sqlalchemy \
      /opt/podracer/lib/python*/site-packages/yaml -name '*.so' -exec strip --strip-unneeded {} + \
 && PYTHONDONTWRITEBYTECODE= python -c "import alembic.command, cryptography.x509, google.rpc.status_pb2, grpc.aio, grpc_health.v1.health, grpc_reflection.v1alpha.reflection, minio, opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.prometheus, psutil, psycopg, rich.live, sqlalchemy.dialects.postgresql, sqlalchemy.orm, typer, yaml"

FROM build AS leaderboard-dependencies
COPY services/leaderboard/pyproject.toml services/leaderboard/
RUN pip install --no-compile --constraint constraints.txt "./libs/podracer_core[database,telemetry]" ./services/leaderboard "psycopg[binary]" \
 && pip uninstall --yes podracer-core podracer-leaderboard minio pycryptodome argon2-cffi argon2-cffi-bindings setuptools pip \
 && find /opt/podracer/lib/python*/site-packages/grpc /opt/podracer/lib/python*/site-packages/sqlalchemy \
      /opt/podracer/lib/python*/site-packages/yaml -name '*.so' -exec strip --strip-unneeded {} + \
 && rm -r /opt/podracer/lib/python*/site-packages/numpy/tests /opt/podracer/lib/python*/site-packages/numpy/*/tests \
 && PYTHONDONTWRITEBYTECODE= python -c "import alembic.command, google.rpc.status_pb2, grpc.aio, grpc_health.v1.health, grpc_reflection.v1alpha.reflection, opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.prometheus, optuna.samplers, psycopg, sqlalchemy.dialects.postgresql, sqlalchemy.orm, yaml"

# The same of those that train, play and evaluate.
FROM build AS pod-dependencies
ARG VARIANT=cpu
ARG TORCH_INDEX=
RUN pip install --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
RUN if [ "$VARIANT" = cuda ]; then extras=torch,mujoco,trading,telemetry,mujoco-warp; else extras=torch,mujoco,trading,telemetry; fi \
 && pip install --constraint constraints.txt "./libs/podracer_core[$extras]" box2d \
 && python -c "import sys, torch; sys.exit('$VARIANT' == 'cuda' and not torch.version.cuda and 'VARIANT=cuda: the build of torch that pip found has no CUDA; TORCH_INDEX says where to look')" \
 && pip uninstall --yes podracer-core setuptools pip

FROM python AS orchestrator
COPY --from=orchestrator-dependencies /opt/podracer /opt/podracer
COPY --from=code /code/podracer_core /code/podracer_client /code/orchestrator /opt/podracer/code/
ARG REVISION=
ENV PODRACER_REVISION=$REVISION
LABEL org.opencontainers.image.title="podracer orchestrator" org.opencontainers.image.version=0.1.0 \
      org.opencontainers.image.revision=$REVISION org.opencontainers.image.licenses=Apache-2.0
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "podracer_orchestrator"]

FROM python AS leaderboard
COPY --from=leaderboard-dependencies /opt/podracer /opt/podracer
COPY --from=code /code/podracer_core /code/leaderboard /opt/podracer/code/
ARG REVISION=
ENV PODRACER_REVISION=$REVISION
LABEL org.opencontainers.image.title="podracer leaderboard" org.opencontainers.image.version=0.1.0 \
      org.opencontainers.image.revision=$REVISION org.opencontainers.image.licenses=Apache-2.0
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "podracer_leaderboard"]

FROM python AS pod
COPY --from=pod-dependencies /opt/podracer /opt/podracer
COPY --from=code /code/podracer_core /opt/podracer/code
# podracer_core/native_settings.py says why.
ENV OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=3000 MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_ARENA_MAX=2
ARG REVISION=
ENV PODRACER_REVISION=$REVISION
LABEL org.opencontainers.image.version=0.1.0 org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.licenses=Apache-2.0
USER 10001:10001
WORKDIR /tmp

FROM pod AS learner
LABEL org.opencontainers.image.title="podracer learner"
COPY --from=code /code/learner /opt/podracer/code
ENTRYPOINT ["python", "-m", "podracer_learner"]

FROM pod AS worker
LABEL org.opencontainers.image.title="podracer worker"
COPY --from=code /code/worker /opt/podracer/code
ENTRYPOINT ["python", "-m", "podracer_worker"]

FROM pod AS evaluator
LABEL org.opencontainers.image.title="podracer evaluator"
COPY --from=code /code/evaluator /opt/podracer/code
ENTRYPOINT ["python", "-m", "podracer_evaluator"]

FROM pod AS policy
LABEL org.opencontainers.image.title="podracer policy server"
COPY --from=code /code/policy /opt/podracer/code
ENTRYPOINT ["python", "-m", "podracer_policy"]
