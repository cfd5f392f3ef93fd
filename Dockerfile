# One image per component: --build-arg COMPONENT=drain-keeper, drain-lock, health-check or ceph-pdb. The result holds one binary, runs as 65532,
# needs no shell and writes to no file, so its root file system can be read-only. ceph-pdb takes --build-arg RUNTIME=librados as well.
#
# Two ways in, chosen by --build-arg BINARY_FROM:
#   build     compiles the component in BUILDER (the default; needs the repository as context)
#   prebuilt  takes a binary that is there already: <context>/<COMPONENT>
#
# Built for the platform of the machine (or of --platform, where the builder emulates it): nothing here names one.

ARG BUILDER=docker.io/library/rust:1.95-bookworm
# glibc no older than the builder's, libgcc, and nothing else.
ARG RUNTIME=gcr.io/distroless/cc-debian12:nonroot
ARG BINARY_FROM=build
# Of RUNTIME=librados: an image with librados, and a C library at least as new as glibc 2.34.
ARG LIBRADOS_FROM=quay.io/ceph/ceph:v20.2

FROM ${BUILDER} AS build
ARG COMPONENT
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --package "${COMPONENT}" && install -D "target/release/${COMPONENT}" /out/operator

FROM scratch AS prebuilt
ARG COMPONENT
COPY ${COMPONENT} /out/operator

FROM ${BINARY_FROM} AS binary

# For ceph-pdb, which loads librados by its name: that of the newest Ceph, for an older one does not know the keys that today's Rook makes;
# with all that it is linked to, the C library and its loader among it, and nothing else.
FROM ${LIBRADOS_FROM} AS librados-files
RUN set -eu; \
    librados="$(ldconfig -p | sed -n 's/.*librados\.so\.2 .*=> //p' | head -n 1)"; \
    test -n "$librados"; \
    mkdir /out; \
    cp --parents --dereference "$librados" $(ldd "$librados" | grep -o '/[^ ]*') /out

FROM scratch AS librados
COPY --from=librados-files /out /

FROM ${RUNTIME}
ARG COMPONENT
LABEL org.opencontainers.image.title="${COMPONENT}" \
      org.opencontainers.image.source="https://github.com/nodeward/nodeward" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=binary --chmod=0555 /out/operator /operator
USER 65532:65532
# Metrics and health; the webhooks of drain-lock and health-check, and FleetLock, come with the chart: 9443, 9444.
EXPOSE 8080
ENTRYPOINT ["/operator"]
