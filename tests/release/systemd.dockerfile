# Debian with systemd as its first process, for test_systemd.py.
ARG DEBIAN=debian:bookworm-slim
FROM ${DEBIAN}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends dbus python3 python3-venv serf systemd
CMD ["/lib/systemd/systemd"]
