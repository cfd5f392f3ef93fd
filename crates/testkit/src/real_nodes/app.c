/* The program of the images that real nodes run: an HTTP server, a process that only waits, or a hook that takes its time. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static int serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(8080)};
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) {
        perror("serve");
        return 1;
    }
    for (;;) {
        char request[4096];
        static const char answer[] = "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
        int connection = accept(listener, NULL, NULL);
        if (connection < 0) continue;
        if (read(connection, request, sizeof request) > 0) (void)!write(connection, answer, sizeof answer - 1);
        close(connection);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "serve";
    if (!strcmp(mode, "sleep")) return sleep(argc > 2 ? atoi(argv[2]) : 0);
    /* The first process of a container ignores what it does not handle. */
    if (strcmp(mode, "stubborn")) signal(SIGTERM, end);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    while (!strcmp(mode, "pause")) pause();
    return serve();
}
