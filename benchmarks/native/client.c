/* The cheapest honest client: a closed loop that parses HTTP chunks and events and stamps each text event.
 *
 *   client PORT IN_FLIGHT REQUESTS
 *
 * Prints requests, text events, seconds, and seconds of CPU (user and system). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ROOM (256 * 1024)
#define MOST 4096

typedef uint64_t u64;
struct conn {
    int fd;
    size_t have; /* bytes kept of a chunk that was cut */
    int in_body;
    char *kept;
};
static struct conn conns[MOST];
static u64 events, done, sent, requests, stamps[65536];
static char request[2048];
static size_t id_at, request_bytes;

static u64 now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (u64)at.tv_sec * 1000000000u + (u64)at.tv_nsec;
}
static void start(struct conn *c) {
    char id[9];
    snprintf(id, sizeof id, "%08llu", (unsigned long long)sent++);
    memcpy(request + id_at, id, 8);
    stamps[sent % 65536] = now_ns();
    if (send(c->fd, request, request_bytes, MSG_NOSIGNAL) != (ssize_t)request_bytes) { perror("send"); exit(1); }
}
/* Takes whole chunks from the bytes kept; true at the end of the response. */
static int parse(struct conn *c, u64 at_ns) {
    char *p = c->kept, *end = c->kept + c->have;
    int over = 0;
    if (!c->in_body) {
        char *body = memmem(p, c->have, "\r\n\r\n", 4);
        if (!body) return 0;
        if (memcmp(p, "HTTP/1.1 200", 12)) { fprintf(stderr, "not 200\n"); exit(1); }
        p = body + 4;
        c->in_body = 1;
    }
    while (p < end) {
        char *line = memmem(p, (size_t)(end - p), "\r\n", 2);
        if (!line) break;
        size_t size = strtoul(p, NULL, 16);
        if ((size_t)(end - line) < 4 + size) break;
        char *data = line + 2;
        if (size) {
            char *text = memmem(data, size, "\"content\":\"", 11);
            if (text && text[11] != '"') stamps[events++ % 65536] = at_ns;
        }
        p = data + size + 2;
        if (!size) { over = 1; break; }
    }
    c->have = (size_t)(end - p);
    memmove(c->kept, p, c->have);
    if (over) c->in_body = 0;
    return over;
}
int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "client PORT IN_FLIGHT REQUESTS\n"); return 2; }
    int in_flight = atoi(argv[2]), epoll_fd = epoll_create1(0), one = 1;
    requests = strtoull(argv[3], NULL, 10);
    char body[512], prompt[256];
    memset(prompt, 'a', 199);
    prompt[199] = 0;
    int n = snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"stream\":true}", prompt);
    request_bytes = (size_t)snprintf(request, sizeof request,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        "x-request-id: 00000000\r\nContent-Length: %d\r\n\r\n%s", n, body);
    id_at = (size_t)(strstr(request, "00000000") - request);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event seen[256];
    u64 began = now_ns();
    for (int i = 0; i < in_flight && i < MOST && sent < requests; i++) {
        struct conn *c = &conns[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        c->kept = malloc(2 * ROOM);
        if (connect(c->fd, (void *)&to, sizeof to)) { perror("connect"); return 1; }
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &wanted);
        start(c);
    }
    while (done < requests) {
        int ready = epoll_wait(epoll_fd, seen, 256, 20000);
        if (ready <= 0) { fprintf(stderr, "nothing for 20 s\n"); return 1; }
        for (int k = 0; k < ready; k++) {
            struct conn *c = seen[k].data.ptr;
            ssize_t got = recv(c->fd, c->kept + c->have, ROOM, MSG_DONTWAIT);
            if (got <= 0) { fprintf(stderr, "connection lost\n"); return 1; }
            c->have += (size_t)got;
            if (!parse(c, now_ns())) continue;
            done++;
            if (sent < requests) start(c);
        }
    }
    struct rusage used;
    double wall = (double)(now_ns() - began) / 1e9;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"requests\": %llu, \"chunks\": %llu, \"wall_s\": %.6f, \"cpu_s\": %.6f}\n", (unsigned long long)done,
           (unsigned long long)events, wall, cpu);
    return 0;
}
