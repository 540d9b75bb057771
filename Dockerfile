# The tab on a directory that is mounted at /logs: docs/containers.md.
#     docker build -t ddp-doctor . && docker run --rm -p 127.0.0.1:6006:6006 -v /my/logs:/logs:ro ddp-doctor
FROM python:3.12-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python -m venv /doctor && /doctor/bin/pip install --no-cache-dir "/source[perfetto]"

FROM python:3.12-slim
COPY --from=build /doctor /doctor
# Traces are a stranger's files: read by a user who owns nothing.
RUN useradd --create-home --uid 1000 doctor && mkdir /logs
USER 1000
ENV PATH=/doctor/bin:$PATH DDP_DOCTOR_CACHE=/tmp/ddp-doctor
WORKDIR /logs
EXPOSE 6006
CMD ["tensorboard", "--logdir", "/logs", "--bind_all", "--port", "6006"]
