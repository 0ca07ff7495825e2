# A server of PostgreSQL with one user and a password that is no secret, from a distribution package.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE}
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/*
ENV PATH=/usr/lib/postgresql/15/bin:${PATH} PGDATA=/var/lib/postgresql/podrace
# The package chooses the number of its user.
# hadolint ignore=DL3066
USER postgres
RUN echo test-database-password >/tmp/password \
    && initdb --username=podrace --pwfile=/tmp/password --auth=scram-sha-256 \
    && rm /tmp/password \
    && echo "host all all all scram-sha-256" >>"${PGDATA}/pg_hba.conf"
CMD ["postgres", "-c", "listen_addresses=*"]
