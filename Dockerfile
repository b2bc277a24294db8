# One image for every role of a swarm: the wheel of this checkout on a CPU build of torch. See docs/containers.md.
# For NVIDIA GPUs: docker build --build-arg TORCH_INDEX=https://pypi.org/simple .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY configs configs
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Programs that are scored run in bubblewrap (docs/tasks.md).
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 shoal \
    && install --directory --owner shoal --group shoal /run/shoal /home/shoal/.config /home/shoal/.local/state
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN python -m pip install --no-cache-dir --index-url "${TORCH_INDEX}" \
        "torch==$(grep --perl-regexp --only-matching '^torch==\K[0-9.]+' /tmp/constraints.txt)" \
    && grep --invert-match '^torch==' /tmp/constraints.txt > /tmp/others.txt \
    && python -m pip install --no-cache-dir --constraint /tmp/others.txt \
        "$(ls /wheels/shoal_rl-*.whl)[coordinator,plot]" \
    && rm -rf /wheels /tmp/constraints.txt /tmp/others.txt
USER 1000:1000
WORKDIR /home/shoal
VOLUME ["/run/shoal"]
ENTRYPOINT ["shoal"]
CMD ["--help"]
