# The images of the six services, a target each; `make images` builds them all.
#
#   PYTHON       base image with Python 3.11, the same for all
#   VARIANT      cpu or cuda: which build of torch learner, worker, evaluator and policy server must have
#   TORCH_INDEX  package index of that build, for CPUs or for the CUDA of torch-cuda.lock; empty: where pip looks for
#                everything, which has CUDA's
#   REVISION     hash of the commit that is built
#   REPOSITORY   where its sources are
#
# The layers of an image, rarest change first: base, torch, the other dependencies, the libraries, the service. What
# is installed, each layer's lock in deploy/images says alone, with a hash for every wheel but torch's (`make locks`), so
# that a new version of ours is a few megabytes.

ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS python
RUN groupadd --gid 10001 podracer \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin podracer \
 && for role in orchestrator leaderboard learner worker evaluator policy client store database; do mkdir -p /secrets/roles/$role; done \
 && mkdir -p /data /shm /spool /cache \
 && chown -R 10001:10001 /secrets /data /shm /spool /cache
ENV PATH=/opt/podracer/bin:/opt/podracer/service/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# No process imports modules from its working directory: user code may have written there.
ENV PYTHONSAFEPATH=1

# A virtual environment that also finds what lies in the folders of the later layers.
FROM python AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/* \
 && python -m venv /opt/podracer \
 && printf '/opt/podracer/code\n/opt/podracer/service\n/opt/podracer/dependencies\n' > "$(/opt/podracer/bin/python -c 'import site; print(site.getsitepackages()[0])')/podracer.pth"
COPY deploy/images/build.lock ./
RUN pip install --require-hashes --no-deps --requirement build.lock

FROM build AS code
COPY libs libs
COPY services services
RUN for part in libs/* services/*; do \
      pip install --no-deps --no-build-isolation --target "/code/${part##*/}" "./$part" || exit 1; \
    done

# What the services of the control plane need besides our code, made small: no torch, bytecode of what is imported only,
# libraries without debugging symbols. The command comes with the orchestrator, for secrets, tokens, jobs and the live
# page; without matplotlib it makes no reports. The leaderboard has no object store.
FROM build AS orchestrator-dependencies
COPY deploy/images/orchestrator.lock ./
RUN pip install --no-compile --require-hashes --no-deps --requirement orchestrator.lock \
 && pip uninstall --yes setuptools pip \
 && find /opt/podracer/lib/python*/site-packages/grpc /opt/podracer/lib/python*/site-packages/sqlalchemy \
      /opt/podracer/lib/python*/site-packages/yaml /opt/podracer/lib/python*/site-packages/cryptography \
      /opt/podracer/lib/python*/site-packages/protovalidate -name '*.so' -exec strip --strip-unneeded {} + \
 && PYTHONDONTWRITEBYTECODE= python -c "import alembic.command, cryptography.x509, google.rpc.status_pb2, grpc.aio, grpc_health.v1.health, grpc_reflection.v1alpha.reflection, minio, opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.prometheus, protovalidate, psutil, psycopg, rich.live, sqlalchemy.dialects.postgresql, sqlalchemy.orm, starlette.applications, typer, uvicorn.protocols.http.h11_impl, yaml"

FROM build AS leaderboard-dependencies
COPY deploy/images/leaderboard.lock ./
RUN pip install --no-compile --require-hashes --no-deps --requirement leaderboard.lock \
 && pip uninstall --yes minio pycryptodome argon2-cffi argon2-cffi-bindings setuptools pip \
 && find /opt/podracer/lib/python*/site-packages/grpc /opt/podracer/lib/python*/site-packages/sqlalchemy \
      /opt/podracer/lib/python*/site-packages/yaml /opt/podracer/lib/python*/site-packages/cryptography \
      /opt/podracer/lib/python*/site-packages/protovalidate -name '*.so' -exec strip --strip-unneeded {} + \
 && rm -r /opt/podracer/lib/python*/site-packages/numpy/tests /opt/podracer/lib/python*/site-packages/numpy/*/tests \
 && PYTHONDONTWRITEBYTECODE= python -c "import alembic.command, google.rpc.status_pb2, grpc.aio, grpc_health.v1.health, grpc_reflection.v1alpha.reflection, opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.prometheus, optuna.samplers, protovalidate, psycopg, sqlalchemy.dialects.postgresql, sqlalchemy.orm, yaml"

# torch has a layer of its own. Its own requirements come from where everything comes from: an index of PyTorch has few
# versions of those. setuptools, which torch names for torch.utils.cpp_extension, is not used.
FROM build AS torch
ARG VARIANT=cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY deploy/images/torch.lock deploy/images/torch-cuda.lock ./
RUN pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep --only-matching 'torch==[^, ]*' torch.lock)" \
 && case "$(pip show torch)" in *nvidia-*) lock=torch-cuda.lock ;; *) lock=torch.lock ;; esac \
 && pip install --require-hashes --no-deps --requirement "$lock" \
 && pip check \
 && python -c "import sys, torch; sys.exit('$VARIANT' == 'cuda' and not torch.version.cuda and 'VARIANT=cuda: the build of torch that pip found has no CUDA; TORCH_INDEX says where to look')" \
 && pip uninstall --yes setuptools pip

# What else those need that train, play and evaluate, made small: Arrow without its network protocols and headers. Only
# libraries that lose their symbols without harm are stripped.
FROM build AS pod-dependencies
ARG VARIANT=cpu
COPY deploy/images/pod.lock deploy/images/pod-cuda.lock ./
RUN if [ "$VARIANT" = cuda ]; then lock=pod-cuda.lock; else lock=pod.lock; fi \
 && pip install --no-compile --require-hashes --no-deps --target /opt/podracer/dependencies --requirement "$lock" \
 && cd /opt/podracer/dependencies \
 && rm -r bin pyarrow/include pyarrow/includes pyarrow/src pyarrow/tests pyarrow/*flight* pyarrow/*s3* numpy/tests numpy/*/tests \
      mujoco/doc pygame/docs pygame/examples pygame/tests \
 && find pyarrow grpc $(ls -d Box2D 2>/dev/null) -name '*.so*' -exec strip --strip-unneeded {} + \
 && PYTHONDONTWRITEBYTECODE= python -c "import google.rpc.status_pb2, grpc_health.v1.health, grpc_reflection.v1alpha.reflection, gymnasium.envs.classic_control, minio, mujoco.batch, opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.prometheus, pyarrow.compute, pyarrow.csv, pyarrow.feather, pyarrow.parquet, safetensors.numpy, talib, yaml"

FROM python AS orchestrator
COPY --from=orchestrator-dependencies /opt/podracer /opt/podracer
COPY --from=code /code/podracer_core /code/podracer_platform /opt/podracer/code/
COPY --from=code /code/podracer_client /code/podracer_trading /code/orchestrator /opt/podracer/service/
ARG REVISION=
ARG REPOSITORY=
ENV PODRACER_REVISION=$REVISION
LABEL org.opencontainers.image.title="podracer orchestrator" org.opencontainers.image.version=0.1.0 org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.licenses=Apache-2.0 org.opencontainers.image.source=$REPOSITORY
USER 10001:10001
WORKDIR /
ENTRYPOINT ["python", "-m", "podracer_orchestrator"]

FROM python AS leaderboard
COPY --from=leaderboard-dependencies /opt/podracer /opt/podracer
COPY --from=code /code/podracer_core /code/podracer_platform /opt/podracer/code/
COPY --from=code /code/leaderboard /opt/podracer/service
ARG REVISION=
ARG REPOSITORY=
ENV PODRACER_REVISION=$REVISION
LABEL org.opencontainers.image.title="podracer leaderboard" org.opencontainers.image.version=0.1.0 org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.licenses=Apache-2.0 org.opencontainers.image.source=$REPOSITORY
USER 10001:10001
WORKDIR /
ENTRYPOINT ["python", "-m", "podracer_leaderboard"]

FROM python AS pod
ARG VARIANT=cpu
# Triton compiles how its kernels are called when they are first used. Debian's Python, unlike python:3.11-slim's, has
# its headers in a package of their own.
RUN if [ "$VARIANT" = cuda ]; then \
      headers=$(python -c 'import os, sysconfig; print("" if os.path.exists(sysconfig.get_path("include") + "/Python.h") else "libpython3-dev")') \
   && apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev $headers && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=torch /opt/podracer /opt/podracer
COPY --from=pod-dependencies /opt/podracer/dependencies /opt/podracer/dependencies
COPY --from=code /code/podracer_core /code/podracer_platform /code/podracer_trading /opt/podracer/code/
RUN [ "$VARIANT" != cuda ] || python -c "import sys; from podracer_core.device import missing; sys.exit(missing() or 0)"
# podracer_core/native.py says why.
ENV OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=3000 MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_ARENA_MAX=2
ARG REVISION=
ARG REPOSITORY=
ENV PODRACER_REVISION=$REVISION
LABEL org.opencontainers.image.version=0.1.0 org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.licenses=Apache-2.0 org.opencontainers.image.source=$REPOSITORY
USER 10001:10001
WORKDIR /

FROM pod AS learner
LABEL org.opencontainers.image.title="podracer learner"
COPY --from=code /code/learner /opt/podracer/service
ENTRYPOINT ["python", "-m", "podracer_learner"]

FROM pod AS worker
LABEL org.opencontainers.image.title="podracer worker"
COPY --from=code /code/worker /opt/podracer/service
ENTRYPOINT ["python", "-m", "podracer_worker"]

FROM pod AS evaluator
LABEL org.opencontainers.image.title="podracer evaluator"
COPY --from=code /code/evaluator /opt/podracer/service
ENTRYPOINT ["python", "-m", "podracer_evaluator"]

FROM pod AS policy
LABEL org.opencontainers.image.title="podracer policy server"
COPY --from=code /code/policy /opt/podracer/service
ENTRYPOINT ["python", "-m", "podracer_policy"]
