/*
 * The functions of librados that `crates/rados` looks up, for a Ceph that is not there: each command goes as a line of text
 * over TCP to the port that `mon_host` ends with, and its answer comes back (`fake_ceph.rs`). Log lines come over a connection
 * of their own. Nothing here knows what a command means.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef void (*log_callback)(void *, const char *, const char *, const char *, const char *, uint64_t, uint64_t, uint64_t,
                             const char *, const char *);

struct connection {
    FILE *in, *out;
};

struct cluster {
    unsigned short port;
    /* One command at a time. */
    pthread_mutex_t lock;
    struct connection commands, log;
    pthread_t log_reader;
    log_callback on_line;
    void *on_line_argument;
};

static int dial(unsigned short port, struct connection *connection) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        close(fd);
        return -ETIMEDOUT;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connection->in = fdopen(fd, "r");
    connection->out = fdopen(dup(fd), "w");
    return connection->in && connection->out ? 0 : -ENOMEM;
}

static void hang_up(struct connection *connection) {
    if (connection->in) fclose(connection->in);
    if (connection->out) fclose(connection->out);
    connection->in = connection->out = NULL;
}

void rados_version(int *major, int *minor, int *extra) {
    *major = 3;
    *minor = *extra = 0;
}

int rados_create2(void **handle, const char *cluster_name, const char *user, uint64_t flags) {
    (void)cluster_name, (void)user, (void)flags;
    struct cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster) return -ENOMEM;
    pthread_mutex_init(&cluster->lock, NULL);
    *handle = cluster;
    return 0;
}

int rados_conf_set(void *handle, const char *option, const char *value) {
    if (strcmp(option, "mon_host") == 0) {
        const char *port = strrchr(value, ':');
        ((struct cluster *)handle)->port = port ? (unsigned short)atoi(port + 1) : 0;
    }
    return 0;
}

int rados_connect(void *handle) {
    struct cluster *cluster = handle;
    return dial(cluster->port, &cluster->commands);
}

static char *receive(FILE *in, size_t length) {
    char *bytes = malloc(length + 1);
    if (bytes && fread(bytes, 1, length, in) != length) {
        free(bytes);
        return NULL;
    }
    return bytes;
}

static int ask(struct cluster *cluster, const char *daemon, const char *command, char **output, size_t *output_length,
               char **status, size_t *status_length) {
    int code;
    char header[64];
    struct connection *with = &cluster->commands;
    if (fprintf(with->out, "%s %s\n", daemon, command) < 0 || fflush(with->out) != 0) return -ETIMEDOUT;
    if (!fgets(header, sizeof header, with->in)) return -ETIMEDOUT;
    if (sscanf(header, "%d %zu %zu", &code, output_length, status_length) != 3) return -EIO;
    *output = receive(with->in, *output_length);
    *status = receive(with->in, *status_length);
    return *output && *status ? code : -ETIMEDOUT;
}

static int locked(void *handle, const char *daemon, const char **commands, char **output, size_t *output_length,
                  char **status, size_t *status_length) {
    struct cluster *cluster = handle;
    pthread_mutex_lock(&cluster->lock);
    int code = ask(cluster, daemon, commands[0], output, output_length, status, status_length);
    pthread_mutex_unlock(&cluster->lock);
    return code;
}

int rados_mon_command(void *handle, const char **commands, size_t count, const char *input, size_t input_length,
                      char **output, size_t *output_length, char **status, size_t *status_length) {
    (void)count, (void)input, (void)input_length;
    return locked(handle, "mon", commands, output, output_length, status, status_length);
}

int rados_mgr_command(void *handle, const char **commands, size_t count, const char *input, size_t input_length,
                      char **output, size_t *output_length, char **status, size_t *status_length) {
    (void)count, (void)input, (void)input_length;
    return locked(handle, "mgr", commands, output, output_length, status, status_length);
}

/* Whether the connection is there is all that is asked for. */
int rados_cluster_stat(void *handle, uint64_t stat[4]) {
    struct cluster *cluster = handle;
    memset(stat, 0, 4 * sizeof *stat);
    return cluster->commands.in ? 0 : -ETIMEDOUT;
}

void rados_buffer_free(char *buffer) { free(buffer); }

static void *read_log(void *argument) {
    struct cluster *cluster = argument;
    char line[1024];
    for (uint64_t number = 1; fgets(line, sizeof line, cluster->log.in); number++) {
        line[strcspn(line, "\n")] = '\0';
        cluster->on_line(cluster->on_line_argument, line, "cluster", "mon.a", "mon.a", 0, 0, number, "[INF]", line);
    }
    return NULL;
}

int rados_monitor_log2(void *handle, const char *level, log_callback on_line, void *argument) {
    (void)level;
    struct cluster *cluster = handle;
    if (cluster->log.in) {
        shutdown(fileno(cluster->log.in), SHUT_RDWR);
        pthread_join(cluster->log_reader, NULL);
        hang_up(&cluster->log);
    }
    if (!on_line) return 0;
    int code = dial(cluster->port, &cluster->log);
    if (code < 0) return code;
    cluster->on_line = on_line;
    cluster->on_line_argument = argument;
    fputs("log\n", cluster->log.out);
    fflush(cluster->log.out);
    return -pthread_create(&cluster->log_reader, NULL, read_log, cluster);
}

void rados_shutdown(void *handle) {
    struct cluster *cluster = handle;
    rados_monitor_log2(handle, "info", NULL, NULL);
    hang_up(&cluster->commands);
    pthread_mutex_destroy(&cluster->lock);
    free(cluster);
}
