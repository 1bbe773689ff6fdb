/* bench_rpc_many.c - eight clients at once, and tensors of 1 MiB, over Unix sockets between
 * processes, as ratios against the least there is.
 *
 *   build/bench/bench_rpc_many [rounds]
 *
 * Eight clients: calls a second that one worker answers, against a bare libevent echo with
 * eight clients of as many bytes, libevent at both ends; and against one whose clients can do
 * nothing but block in recv, as the limit. Large tensors: bytes a second of calls with a tensor
 * of 1 MiB and an empty answer, against writev and readv of as many bytes and an answer of 64.
 * Processes run where the scheduler puts them; the best of several rounds counts, which
 * alternate. */
#include <event2/event.h>
#include <sys/uio.h>

#include "rpc_bench.h"

enum { CLIENTS = 8, CALLS = 10000, CALL_BYTES = 64 + 17, BIG = 1 << 20, BIG_CALLS = 1000 };

/* What the clients wait for before they begin. */
static void wait_for_go(int go)
{
    char byte;
    if (read(go, &byte, 1) != 1) exit(1);
}

static pid_t child(void)
{
    pid_t pid = fork();
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void end_children(int n)
{
    for (int i = 0; i < n; i++) {
        int status;
        if (wait(&status) < 0 || status) exit(1);
    }
}

/* ---- eight clients ---- */

static int open_streams;

static void echo_server(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    char buffer[4096];
    ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n > 0) {
        if (send(fd, buffer, (size_t)n, MSG_NOSIGNAL) != n) exit(1);
    } else if (n == 0) {
        event_free(*(struct event **)arg);
        open_streams--;
    }
}

typedef struct echo {
    char buffer[4096];
    bool waits;
} echo;

static void echo_arrived(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    echo *e = arg;
    if (recv(fd, e->buffer, sizeof e->buffer, 0) != CALL_BYTES) exit(1);
    e->waits = false;
}

static void echo_client(int fd)
{
    static echo e;
    evutil_make_socket_nonblocking(fd);
    struct event_base *base = event_base_new();
    event_add(event_new(base, fd, EV_READ | EV_PERSIST, echo_arrived, &e), NULL);
    for (int i = 0; i < CALLS; i++) {
        e.waits = true;
        if (send(fd, e.buffer, CALL_BYTES, MSG_NOSIGNAL) != CALL_BYTES) exit(1);
        while (e.waits) event_base_loop(base, EVLOOP_ONCE);
    }
}

static void blocking_client(int fd)
{
    char buffer[CALL_BYTES] = {0};
    for (int i = 0; i < CALLS; i++) {
        if (send(fd, buffer, sizeof buffer, MSG_NOSIGNAL) != sizeof buffer) exit(1);
        if (recv(fd, buffer, sizeof buffer, MSG_WAITALL) != sizeof buffer) exit(1);
    }
}

static result echo_many(void (*client)(int fd))
{
    int go[2], fds[CLIENTS][2];
    if (pipe(go)) exit(1);
    for (int i = 0; i < CLIENTS; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds[i])) exit(1);
        if (child() == 0) {
            for (int k = 0; k <= i; k++) close(fds[k][0]);
            wait_for_go(go[0]);
            client(fds[i][1]);
            _exit(0);
        }
        close(fds[i][1]);
    }
    struct event_base *base = event_base_new();
    struct event *events[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        evutil_make_socket_nonblocking(fds[i][0]);
        events[i] = event_new(base, fds[i][0], EV_READ | EV_PERSIST, echo_server, &events[i]);
        event_add(events[i], NULL);
    }
    open_streams = CLIENTS;
    double start = seconds();
    if (write(go[1], "12345678", CLIENTS) != CLIENTS) exit(1);
    while (open_streams) event_base_loop(base, EVLOOP_ONCE);
    double took = seconds() - start;
    event_base_free(base);
    for (int i = 0; i < CLIENTS; i++) close(fds[i][0]);
    close(go[0]);
    close(go[1]);
    end_children(CLIENTS);
    return (result){.rate = CLIENTS * CALLS / took};
}

static result calls_many(bool tensor)
{
    int go[2];
    if (pipe(go)) exit(1);
    rle_rpc *rpc = new_worker("server");
    if (rle_rpc_listen(rpc, address, NULL) != RLE_OK) exit(1);
    for (int i = 0; i < CLIENTS; i++) {
        if (child() != 0) continue;
        char name[16];
        snprintf(name, sizeof name, "client_%d", i);
        rle_rpc *mine = new_worker(name);
        rle_peer *peer = join(mine);
        float row[4] = {1, 2, 3, 4};
        rle_array a = {.data = row, .dtype = RLE_F32, .ndim = 1, .shape = {4}, .stride = {1}};
        wait_for_go(go[0]);
        make_calls(mine, peer, tensor ? &a : NULL, CALLS);
        _exit(0);
    }
    while (rle_rpc_peers(rpc, NULL, 0) < CLIENTS) rle_rpc_turn(rpc, true);
    rle_encoder e;
    rle_encoder_init(&e);
    double start = seconds();
    if (write(go[1], "12345678", CLIENTS) != CLIENTS) exit(1);
    for (int left = CLIENTS * CALLS; left > 0;) {
        rle_rpc_turn(rpc, true);
        left -= answer_calls(rpc, &e);
    }
    double took = seconds() - start;
    end_children(CLIENTS);
    rle_encoder_fini(&e);
    rle_rpc_free(rpc);
    close(go[0]);
    close(go[1]);
    return (result){.rate = CLIENTS * CALLS / took};
}

/* ---- large tensors ---- */

static void move_all(int fd, uint8_t *head, uint8_t *body, bool out)
{
    struct iovec iov[2] = {{head, 64}, {body, BIG}};
    for (int i = 0; i < 2;) {
        ssize_t n = out ? writev(fd, iov + i, 2 - i) : readv(fd, iov + i, 2 - i);
        if (n <= 0) exit(1);
        for (; i < 2 && (size_t)n >= iov[i].iov_len; i++) n -= (ssize_t)iov[i].iov_len;
        if (i == 2) break;
        iov[i].iov_base = (uint8_t *)iov[i].iov_base + n;
        iov[i].iov_len -= (size_t)n;
    }
}

static uint8_t head[64], big[BIG];

static result bare_pair(void)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) exit(1);
    if (child() == 0) {
        for (int i = 0; i < BIG_CALLS; i++) {
            move_all(fds[1], head, big, false);
            if (write(fds[1], head, sizeof head) != sizeof head) exit(1);
        }
        _exit(0);
    }
    double start = seconds();
    for (int i = 0; i < BIG_CALLS; i++) {
        move_all(fds[0], head, big, true);
        if (recv(fds[0], head, sizeof head, MSG_WAITALL) != sizeof head) exit(1);
    }
    double took = seconds() - start;
    close(fds[0]);
    close(fds[1]);
    end_children(1);
    return (result){.rate = BIG_CALLS / took};
}

static result big_calls(void)
{
    rle_rpc *rpc = new_worker("server");
    if (rle_rpc_listen(rpc, address, NULL) != RLE_OK) exit(1);
    if (child() == 0) {
        rle_rpc *mine = new_worker("client");
        rle_peer *peer = join(mine);
        rle_array a = {.data = big, .dtype = RLE_U8, .ndim = 1, .shape = {BIG}, .stride = {1}};
        make_calls(mine, peer, &a, BIG_CALLS);
        _exit(0);
    }
    rle_encoder e;
    rle_encoder_init(&e);
    double start = 0;
    for (int left = BIG_CALLS; left > 0;) {
        rle_rpc_turn(rpc, true);
        int n = answer_calls(rpc, &e);
        if (n && !start) start = seconds();
        left -= n;
    }
    double took = seconds() - start;
    end_children(1);
    rle_encoder_fini(&e);
    rle_rpc_free(rpc);
    return (result){.rate = (BIG_CALLS - 1) / took};
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    if (!bench_begin()) return 1;
    result echoes = {0, 0}, limit = {0, 0}, empty = {0, 0}, tensor = {0, 0};
    result bare = {0, 0}, large = {0, 0};
    for (int i = 0; i < rounds; i++) {
        keep(&echoes, echo_many(echo_client));
        keep(&limit, echo_many(blocking_client));
        keep(&empty, calls_many(false));
        keep(&tensor, calls_many(true));
        keep(&bare, bare_pair());
        keep(&large, big_calls());
    }
    printf("%d clients\n", CLIENTS);
    printf("bare echo    %8.0f round trips/s; with blocking clients %8.0f\n", echoes.rate,
           limit.rate);
    const result *calls[] = {&empty, &tensor};
    for (int i = 0; i < 2; i++)
        printf("%-12s %8.0f round trips/s; %3.0f %% of the echo, "
               "%3.0f %% with blocking clients\n",
               i ? "f32[4] call" : "empty call", calls[i]->rate,
               100 * calls[i]->rate / echoes.rate, 100 * calls[i]->rate / limit.rate);
    printf("1 MiB\n");
    printf("bare pair    %8.0f MiB/s\n", bare.rate);
    printf("tensor call  %8.0f MiB/s; %3.0f %% of the pair\n", large.rate,
           100 * large.rate / bare.rate);
    bench_end();
    return 0;
}
