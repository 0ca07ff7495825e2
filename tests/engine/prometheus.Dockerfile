# The collector, from a distribution package, with the user of the official image.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE}
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /prometheus && chown 65534:65534 /prometheus
USER 65534:65534
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
