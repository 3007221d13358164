/* A streaming completion server whose delays are known: the truth that a load generator is held against.
 *
 *   server TOKENS TTFT_US ITL_US LOG [PORT]
 *
 * Prints the port it listens on (127.0.0.1); several servers may share one. GET /v1/models names one model. Every
 * request with a Content-Length gets a chunked event stream of TOKENS text events, a finish, a usage and an end
 * event, an event to a chunk. With TTFT_US = ITL_US = 0 it goes out in one write; otherwise text event i is due TTFT_US + i * ITL_US after the last request byte was read, on
 * one absolute schedule, and each goes out by itself. The log, written at SIGTERM, holds for each request:
 * char id[40], u64 instants[1 + TOKENS]: last request byte arrived (the kernel's receive time, so that a request
 * which waits while the server writes to others is late by the server's doing, not by the client's), then each
 * text event just before its write (CLOCK_MONOTONIC, ns). The delays count from the read. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096
#define ROOM 65536
#define ID 40

typedef uint64_t u64;
struct conn {
    int fd, next, busy;      /* next: text event to be sent, -1: none */
    size_t have;
    u64 read_ns, came_ns, *row;
    char in[ROOM], id[ID];
};
static struct conn *conns[MOST];
static int heap[MOST], heaped, spare[MOST], spared, tokens, epoll_fd;
static u64 ttft_ns, itl_ns;
static char *rows;
static size_t row_bytes, count, room;
static volatile sig_atomic_t stopped;

static const char *WORDS[] = {" a", " tree", " in", " the", " garden", " blue", " of", " mountain", " he", " seven",
                              " river", " it", " window", " under", " and", " light"};
static const char *HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

static u64 now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (u64)at.tv_sec * 1000000000u + (u64)at.tv_nsec;
}
/* Like recv; sets when the kernel took in the last of it, and when we read it. */
static ssize_t receive(struct conn *c) {
    char control[64];
    struct iovec to = {c->in + c->have, ROOM - 1 - c->have};
    struct msghdr message = {.msg_iov = &to, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(c->fd, &message, 0);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    c->came_ns = c->read_ns = now_ns();
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&message); n > 0 && m; m = CMSG_NXTHDR(&message, m)) {
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_TIMESTAMPNS) continue;
        struct timespec at;
        memcpy(&at, CMSG_DATA(m), sizeof at);
        int64_t waited = (int64_t)(wall.tv_sec - at.tv_sec) * 1000000000 + wall.tv_nsec - at.tv_nsec;
        if (waited > 0 && waited < 1000000000) c->came_ns -= (u64)waited;
    }
    return n;
}
static u64 due(int i) { return conns[i]->read_ns + ttft_ns + (u64)conns[i]->next * itl_ns; }
static void swap(int a, int b) { int t = heap[a]; heap[a] = heap[b]; heap[b] = t; }
static void push(int i) {
    int at = heaped++;
    for (heap[at] = i; at && due(heap[at]) < due(heap[(at - 1) / 2]); at = (at - 1) / 2) swap(at, (at - 1) / 2);
}
static void sift(void) {
    for (int at = 0;;) {
        int least = at, left = 2 * at + 1;
        for (int k = left; k < left + 2 && k < heaped; k++) if (due(heap[k]) < due(heap[least])) least = k;
        if (least == at) return;
        swap(at, least);
        at = least;
    }
}

/* Appends an event as a chunk. */
static char *event(char *to, const char *id, const char *rest) {
    char data[512];
    int n = snprintf(data, sizeof data,
                     "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                     "\"model\":\"native\",\"choices\":[%s}\n\n", id, rest);
    return to + sprintf(to, "%x\r\n%s\r\n", n, data);
}
static char *text(char *to, const char *id, int i) {
    char rest[160];
    sprintf(rest, "{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":null}]", WORDS[i % 16]);
    return event(to, id, rest);
}
static char *ending(char *to, const char *id) {
    char rest[160];
    to = event(to, id, "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]");
    sprintf(rest, "],\"usage\":{\"prompt_tokens\":32,\"completion_tokens\":%d,\"total_tokens\":%d}", tokens, 32 + tokens);
    to = event(to, id, rest);
    return to + sprintf(to, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

static void put(int fd, const char *from, const char *to) {
    while (from < to) { /* a reader that does not keep up holds up everybody: it is not one to be measured */
        ssize_t sent = send(fd, from, (size_t)(to - from), MSG_NOSIGNAL);
        if (sent > 0) from += sent;
        else if (errno != EAGAIN && errno != EINTR) return;
    }
}
static u64 *new_row(const char *id) {
    if (count == room) rows = realloc(rows, (room = room ? 2 * room : 65536) * row_bytes);
    char *row = rows + count++ * row_bytes;
    memset(row, 0, row_bytes);
    strcpy(row, id);
    return (u64 *)(row + ID);
}
/* A whole response, made once for each length of id; then only the id is written into it. */
struct whole { char *bytes; size_t size, places, *at; };
static void at_once(struct conn *c) {
    static struct whole made[ID];
    size_t length = strlen(c->id);
    struct whole *w = &made[length];
    if (!w->bytes) {
        char *to = w->bytes = malloc(4096 + (size_t)tokens * 512);
        to += sprintf(to, "%s", HEAD);
        for (int i = 0; i < tokens; i++) to = text(to, c->id, i);
        to = ending(to, c->id);
        w->size = (size_t)(to - w->bytes);
        w->at = malloc((size_t)(tokens + 2) * sizeof *w->at);
        for (char *p = w->bytes; (p = strstr(p, "{\"id\":\"")); ) w->at[w->places++] = (size_t)((p += 7) - w->bytes);
    }
    for (size_t i = 0; i < w->places; i++) memcpy(w->bytes + w->at[i], c->id, length);
    u64 *row = new_row(c->id);
    row[0] = c->came_ns;
    for (int i = 1; i <= tokens; i++) row[i] = c->read_ns;
    put(c->fd, w->bytes, w->bytes + w->size);
}
static void next_text(int i) {
    static char out[4096];
    struct conn *c = conns[i];
    if (c->fd < 0) {
        spare[spared++] = i;
        c->next = -1;
        return;
    }
    char *to = text(out, c->id, c->next);
    c->row[1 + c->next++] = now_ns();
    put(c->fd, out, to);
    if (c->next < tokens) return;
    put(c->fd, out, ending(out, c->id));
    u64 *row = new_row(c->id);
    memcpy(row, c->row, (size_t)(1 + tokens) * sizeof *row);
    c->next = -1;
}
/* A client that asks for the models before it sends load is told of one; whatever else it asks for is not there. */
static void answer_get(struct conn *c) {
    char out[256];
    const char *list = "{\"object\":\"list\",\"data\":[{\"id\":\"native\",\"object\":\"model\"}]}";
    int here = !strncmp(c->in + 4, "/v1/models ", 11);
    int n = sprintf(out, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                    here ? "200 OK" : "404 Not Found", here ? strlen(list) : 0, here ? list : "");
    put(c->fd, out, out + n);
}
static void answer(int i) {
    struct conn *c = conns[i];
    if (!strncmp(c->in, "GET ", 4)) { answer_get(c); return; }
    if (!ttft_ns && !itl_ns) { at_once(c); return; }
    put(c->fd, HEAD, HEAD + strlen(HEAD));
    c->row[0] = c->came_ns;
    c->next = 0;
    push(i);
}
static void readable(int i) {
    struct conn *c = conns[i];
    ssize_t n = receive(c);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        close(c->fd);
        c->fd = -1;
        if (c->next < 0) spare[spared++] = i;
        return;
    }
    c->have += (size_t)n;
    c->in[c->have] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return;
    char *length = strcasestr(c->in, "\r\ncontent-length:"), *id = strcasestr(c->in, "\r\nx-request-id:");
    size_t body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    if (c->have < (size_t)(end + 4 - c->in) + body) return;
    strcpy(c->id, "none-given");
    if (id && id < end) sscanf(id + 15, " %39[A-Za-z0-9_-]", c->id);
    c->have = 0;
    answer(i);
}
static void stop(int signal) { (void)signal; stopped = 1; }

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) { fprintf(stderr, "server TOKENS TTFT_US ITL_US LOG [PORT]\n"); return 2; }
    tokens = atoi(argv[1]);
    ttft_ns = strtoull(argv[2], NULL, 10) * 1000;
    itl_ns = strtoull(argv[3], NULL, 10) * 1000;
    row_bytes = ID + (size_t)(1 + tokens) * sizeof(u64);
    prctl(PR_SET_TIMERSLACK, 1UL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, stop);
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    if (argc == 6) where.sin_port = htons((uint16_t)atoi(argv[5]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(listener, (void *)&where, sizeof where) || listen(listener, 1024)) { perror("listen"); return 1; }
    getsockname(listener, (void *)&where, &size);
    printf("%d\n", ntohs(where.sin_port));
    fflush(stdout);
    epoll_fd = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = MOST}, seen[256];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &wanted);
    int made = 0;
    while (!stopped) {
        int64_t wait = heaped ? (int64_t)(due(heap[0]) - now_ns()) : 100000000;
        struct timespec most = {.tv_nsec = wait > 0 ? wait % 1000000000 : 0, .tv_sec = wait > 0 ? wait / 1000000000 : 0};
        int n = epoll_pwait2(epoll_fd, seen, 256, &most, NULL);
        for (int k = 0; k < n; k++) {
            int i = (int)seen[k].data.u32, fd;
            if (i < MOST) { readable(i); continue; }
            while ((spared || made < MOST) && (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
                int at = spared ? spare[--spared] : made++;
                struct conn *c = conns[at];
                if (!c) {
                    c = conns[at] = calloc(1, sizeof **conns);
                    c->row = calloc((size_t)(1 + tokens), sizeof(u64));
                }
                c->fd = fd;
                c->next = -1;
                c->have = 0;
                wanted.data.u32 = (unsigned)at;
                epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &wanted);
            }
        }
        while (heaped && due(heap[0]) <= now_ns()) {
            next_text(heap[0]);
            if (conns[heap[0]]->next < 0) heap[0] = heap[--heaped];
            sift();
        }
    }
    FILE *log = fopen(argv[4], "wb");
    if (!log || fwrite(rows, row_bytes, count, log) != count || fclose(log)) { perror(argv[4]); return 1; }
    return 0;
}
