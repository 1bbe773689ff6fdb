/* supervisor.c - one poll loop over signals, processes and their output. */
#include "base/supervisor.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/process.h"

/* A line longer than this comes out in pieces. */
#define LINE_LIMIT (64 * 1024)
/* While more than this waits to be written, pipes are not read: whoever writes faster
 * than the terminal shows waits, as it would without us. */
#define SINK_LIMIT (256 * 1024)
/* Others may end by themselves for this long after a good end before they are asked to.
 */
#define QUIET_NS 300000000ll
/* So long the cause may take to show after its first consequence has. */
#define CAUSE_NS 200000000ll
/* Without pidfds (kernels before 5.3) ended processes are looked for this often. */
#define BLIND_MS 50

/* Text that waits to be written to standard output or error. */
typedef struct sink {
    int fd;
    char *bytes;
    size_t start, end, room;
    bool broken; /* nobody reads it any more */
} sink;

/* The read end of a process's output, and its last unfinished line. */
typedef struct stream {
    int fd; /* borrowed from the process; -1 once at its end */
    sink *to;
    const char *name;
    char *line;
    size_t used;
} stream;

typedef struct member_state {
    rle_process process;
    bool running, failed;
    stream out, err;
} member_state;

typedef struct supervisor {
    const rle_group *group;
    member_state *members;
    sink sinks[2];
    struct pollfd *polls;
    int signals; /* signalfd */
    int left;    /* processes still running */

    int suspect, suspect_status; /* member that ended because a peer was lost, or -1 */
    int64_t suspect_at;          /* when it becomes the failure; INT64_MAX = never */

    bool ending;
    int64_t term_at, kill_at; /* rle_now() at which to ask and to kill; INT64_MAX = done */
    rle_group_result result;
} supervisor;

/* ---- output ---- */

static bool sink_put(sink *s, const char *bytes, size_t n)
{
    if (s->broken) return true;
    if (s->start > 0 && s->end + n > s->room) {
        memmove(s->bytes, s->bytes + s->start, s->end - s->start);
        s->end -= s->start;
        s->start = 0;
    }
    if (s->end + n > s->room) {
        size_t room = s->room ? s->room : 4096;
        while (room < s->end + n) room *= 2;
        char *grown = rle_realloc(s->bytes, room);
        if (!grown) return false;
        s->bytes = grown;
        s->room = room;
    }
    memcpy(s->bytes + s->end, bytes, n);
    s->end += n;
    return true;
}

/* Write what a descriptor that poll called writable takes for certain without blocking.
 * Its mode is not ours to change: we share it with the processes and the shell. */
static void sink_write(sink *s)
{
    size_t n = s->end - s->start;
    if (n > PIPE_BUF) n = PIPE_BUF;
    /* End at a line, so that lines of others do not fall into the middle of ours. */
    const char *newline = memrchr(s->bytes + s->start, '\n', n);
    if (newline) n = (size_t)(newline - (s->bytes + s->start)) + 1;
    ssize_t written = write(s->fd, s->bytes + s->start, n);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (written < 0) {
        s->broken = true;
        s->start = s->end = 0;
        return;
    }
    s->start += (size_t)written;
    if (s->start == s->end) s->start = s->end = 0;
}

static bool sink_pending(const sink *s)
{
    return s->end > s->start && !s->broken;
}

/* When memory is short the line is lost, not the run. */
static void stream_emit(stream *s)
{
    size_t mark = s->to->end - s->to->start;
    if (!sink_put(s->to, s->name, strlen(s->name)) || !sink_put(s->to, " | ", 3) ||
        !sink_put(s->to, s->line, s->used) || !sink_put(s->to, "\n", 1))
        s->to->end = s->to->start + mark;
    s->used = 0;
}

static void stream_take(stream *s, const char *bytes, size_t n)
{
    while (n > 0) {
        const char *newline = memchr(bytes, '\n', n);
        size_t part = newline ? (size_t)(newline - bytes) : n;
        if (part > LINE_LIMIT - s->used) part = LINE_LIMIT - s->used;
        memcpy(s->line + s->used, bytes, part);
        s->used += part;
        bytes += part;
        n -= part;
        if (n > 0 && *bytes == '\n') {
            stream_emit(s);
            bytes++;
            n--;
        } else if (s->used == LINE_LIMIT) {
            stream_emit(s);
        }
    }
}

static void stream_end(stream *s)
{
    if (s->fd < 0) return;
    if (s->used > 0) stream_emit(s);
    s->fd = -1;
}

/* One read; `all`: until nothing is left for now, for a process that has ended. */
static void stream_read(stream *s, bool all)
{
    char buffer[16 * 1024];
    while (s->fd >= 0) {
        ssize_t n = read(s->fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            stream_end(s);
            return;
        }
        stream_take(s, buffer, (size_t)n);
        if (!all) return;
    }
}

static rle_status stream_init(stream *s, int fd, sink *to, const char *name)
{
    s->fd = fd;
    s->to = to;
    s->name = name;
    if (fd < 0) return RLE_OK;
    s->line = rle_malloc(LINE_LIMIT);
    return s->line ? RLE_OK : rle_oom(LINE_LIMIT, "a line of output");
}

/* ---- the end of the run ---- */

static void send_all(supervisor *sv, int signal)
{
    for (int i = 0; i < sv->group->count; i++)
        if (sv->members[i].running) kill(sv->members[i].process.pid, signal);
}

static void begin_ending(supervisor *sv, int64_t quiet)
{
    int64_t now = rle_now();
    sv->ending = true;
    sv->term_at = now + quiet;
    sv->kill_at = now + quiet + sv->group->grace_ns;
}

static void set_failure(supervisor *sv, int index, int wait_status)
{
    const rle_member *m = &sv->group->members[index];
    char what[64];
    rle_process_describe(wait_status, what, sizeof what);
    sv->result.failed = index;
    sv->result.exit_code = rle_process_exit_code(wait_status);
    snprintf(sv->result.message, sizeof sv->result.message, "%s \"%s\" %s", m->role,
             m->name, what);
    begin_ending(sv, 0);
}

static void run_timers(supervisor *sv)
{
    int64_t now = rle_now();
    if (!sv->ending && now >= sv->suspect_at)
        set_failure(sv, sv->suspect, sv->suspect_status);
    if (!sv->ending) return;
    if (now >= sv->term_at) {
        send_all(sv, SIGTERM);
        sv->term_at = INT64_MAX;
    }
    if (now >= sv->kill_at) {
        send_all(sv, SIGKILL);
        sv->kill_at = INT64_MAX;
    }
}

static void read_signals(supervisor *sv)
{
    struct signalfd_siginfo info;
    while (read(sv->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        int signal = (int)info.ssi_signo;
        if (sv->result.signal || sv->result.failed >= 0) { /* the user cannot wait */
            sv->kill_at = 0;
            for (int i = 0; i < 2; i++) sv->sinks[i].broken |= sv->left == 0;
        } else {
            sv->result.signal = signal;
            sv->result.exit_code = 128 + signal;
            snprintf(sv->result.message, sizeof sv->result.message, "stopped (signal %d)",
                     signal);
            begin_ending(sv, 0);
        }
    }
}

/* Every primary (or secondary) has ended with exit code 0; false when there is none. */
static bool all_done(const supervisor *sv, bool primary)
{
    int seen = 0;
    for (int i = 0; i < sv->group->count; i++) {
        if (sv->group->members[i].primary != primary) continue;
        if (sv->members[i].running || sv->members[i].failed) return false;
        seen++;
    }
    return seen > 0;
}

/* Which of two failures is more likely the cause of the other. */
static int rank(int wait_status)
{
    if (WIFSIGNALED(wait_status)) return 2;
    return WEXITSTATUS(wait_status) != RLE_EXIT_LOST_PEER;
}

/* Collect every process that has ended and decide what that means for the run. */
static void reap(supervisor *sv)
{
    int worst = -1, worst_status = 0;
    bool any = false;
    for (int i = 0; i < sv->group->count; i++) {
        member_state *m = &sv->members[i];
        int status = 0;
        if (!m->running) continue;
        pid_t pid = waitpid(m->process.pid, &status, WNOHANG);
        if (pid == 0 || (pid < 0 && errno == EINTR)) continue;
        m->running = false;
        sv->left--;
        any = true;
        /* What it said last comes before what we say of it. A process of its own that still
         * holds the pipe is not waited for. */
        stream_read(&m->out, true);
        stream_read(&m->err, true);
        stream_end(&m->out);
        stream_end(&m->err);
        rle_process_fini(&m->process);
        m->failed = status != 0;
        if (m->failed && (worst < 0 || rank(status) > rank(worst_status))) {
            worst = i;
            worst_status = status;
        }
    }
    if (!any || sv->ending) return;
    bool lost_peer = worst >= 0 && rle_process_exit_code(worst_status) == RLE_EXIT_LOST_PEER;
    if (worst >= 0 && !lost_peer) {
        set_failure(sv, worst, worst_status);
        return;
    }
    if (lost_peer && sv->suspect < 0) {
        sv->suspect = worst;
        sv->suspect_status = worst_status;
        sv->suspect_at = rle_now() + CAUSE_NS;
    }
    if (all_done(sv, true) || (sv->group->secondaries_finish && all_done(sv, false)))
        begin_ending(sv, QUIET_NS);
    else if (sv->left == 0)
        set_failure(sv, sv->suspect, sv->suspect_status);
}

/* ---- the loop ---- */

static void poll_add(supervisor *sv, int *n, int fd, short events)
{
    if (fd < 0) return;
    sv->polls[*n] = (struct pollfd){.fd = fd, .events = events};
    ++*n;
}

static bool was_ready(const supervisor *sv, int n, int fd)
{
    for (int i = 0; i < n; i++)
        if (sv->polls[i].fd == fd) return sv->polls[i].revents != 0;
    return false;
}

static int poll_timeout(const supervisor *sv, bool blind)
{
    int64_t at = sv->ending ? (sv->term_at < sv->kill_at ? sv->term_at : sv->kill_at)
                            : sv->suspect_at;
    if (sv->left == 0 && sv->ending) at = INT64_MAX;
    int64_t ms = -1;
    if (at != INT64_MAX) {
        ms = (at - rle_now() + 999999) / 1000000;
        if (ms < 0) ms = 0;
    }
    if (blind && (ms < 0 || ms > BLIND_MS)) ms = BLIND_MS;
    return (int)ms;
}

static void turn(supervisor *sv)
{
    int n = 0;
    bool blind = false;
    poll_add(sv, &n, sv->signals, POLLIN);
    for (int i = 0; i < 2; i++)
        if (sink_pending(&sv->sinks[i])) poll_add(sv, &n, sv->sinks[i].fd, POLLOUT);
    for (int i = 0; i < sv->group->count; i++) {
        member_state *m = &sv->members[i];
        if (!m->running) continue;
        if (m->process.pidfd < 0) blind = true;
        poll_add(sv, &n, m->process.pidfd, POLLIN);
        if (sv->sinks[0].end - sv->sinks[0].start < SINK_LIMIT)
            poll_add(sv, &n, m->out.fd, POLLIN);
        if (sv->sinks[1].end - sv->sinks[1].start < SINK_LIMIT)
            poll_add(sv, &n, m->err.fd, POLLIN);
    }
    if (poll(sv->polls, (nfds_t)n, poll_timeout(sv, blind)) < 0) return; /* EINTR */

    /* Signals first: a Ctrl-C reaches the whole terminal, and what our processes make of it
     * is not their failure. */
    if (sv->polls[0].revents) read_signals(sv);
    for (int i = 0; i < sv->group->count; i++) {
        member_state *m = &sv->members[i];
        if (m->out.fd >= 0 && was_ready(sv, n, m->out.fd)) stream_read(&m->out, false);
        if (m->err.fd >= 0 && was_ready(sv, n, m->err.fd)) stream_read(&m->err, false);
    }
    reap(sv);
    run_timers(sv);
    for (int i = 0; i < 2; i++)
        if (sink_pending(&sv->sinks[i]) && was_ready(sv, n, sv->sinks[i].fd))
            sink_write(&sv->sinks[i]);
}

/* ---- start ---- */

static rle_status start_member(supervisor *sv, int index, int source)
{
    const rle_member *m = &sv->group->members[index];
    member_state *state = &sv->members[index];
    rle_process_spec spec = {
        .exe = sv->group->exe,
        .argv = sv->group->argv,
        .handoff = m->handoff,
        .handoff_size = m->handoff_size,
        .stdin_fd = source >= 0 ? source : m->keep_stdin ? -1 : -2,
        .pipe_output = m->prefix,
    };
    RLE_TRY(rle_process_start(&spec, &state->process));
    state->running = true;
    sv->left++;
    RLE_TRY(stream_init(&state->out, state->process.out, &sv->sinks[0], m->name));
    return stream_init(&state->err, state->process.err, &sv->sinks[1], m->name);
}

static rle_status start_members(supervisor *sv)
{
    for (int i = 0; i < sv->group->count; i++) {
        int source = -1;
        /* One file each: processes that share one would share the position in it. */
        if (sv->group->source)
            RLE_TRY(rle_memory_file("rlengine-source", sv->group->source,
                                    sv->group->source_size, &source));
        rle_status status = start_member(sv, i, source);
        if (source >= 0) close(source);
        RLE_TRY(status);
    }
    return RLE_OK;
}

/* A signal that this process was told to ignore (nohup, `&` in a script) stays ignored. */
static void add_unless_ignored(sigset_t *set, int signal)
{
    struct sigaction now;
    if (sigaction(signal, NULL, &now) == 0 && now.sa_handler == SIG_IGN) return;
    sigaddset(set, signal);
}

static rle_status supervisor_init(supervisor *sv, const rle_group *group, const sigset_t *set)
{
    *sv = (supervisor){.group = group,
                       .signals = -1,
                       .suspect = -1,
                       .suspect_at = INT64_MAX,
                       .result = {.failed = -1}};
    sv->sinks[0].fd = STDOUT_FILENO;
    sv->sinks[1].fd = STDERR_FILENO;
    size_t polls = 3 + 3 * (size_t)group->count;
    sv->members = rle_calloc((size_t)group->count, sizeof *sv->members);
    if (!sv->members) return rle_oom((size_t)group->count * sizeof *sv->members, "a group");
    for (int i = 0; i < group->count; i++) {
        sv->members[i].process = (rle_process){-1, -1, -1, -1};
        sv->members[i].out.fd = sv->members[i].err.fd = -1;
    }
    sv->polls = rle_calloc(polls, sizeof *sv->polls);
    if (!sv->polls) return rle_oom(polls * sizeof *sv->polls, "a group");
    sv->signals = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (sv->signals < 0)
        return rle_fail(RLE_UNAVAILABLE, "cannot watch signals: %s", strerror(errno));
    return RLE_OK;
}

static void supervisor_fini(supervisor *sv)
{
    for (int i = 0; sv->members && i < sv->group->count; i++) {
        rle_process_fini(&sv->members[i].process);
        rle_free(sv->members[i].out.line);
        rle_free(sv->members[i].err.line);
    }
    rle_free(sv->members);
    rle_free(sv->polls);
    rle_free(sv->sinks[0].bytes);
    rle_free(sv->sinks[1].bytes);
    if (sv->signals >= 0) close(sv->signals);
}

rle_status rle_group_run(const rle_group *group, rle_group_result *result)
{
    sigset_t set, before;
    sigemptyset(&set);
    add_unless_ignored(&set, SIGINT);
    add_unless_ignored(&set, SIGTERM);
    add_unless_ignored(&set, SIGHUP);
    /* Ignored, SIGCHLD makes the kernel throw exit codes away. */
    struct sigaction by_default = {.sa_handler = SIG_DFL}, child_before;
    sigaction(SIGCHLD, &by_default, &child_before);
    pthread_sigmask(SIG_BLOCK, &set, &before);

    supervisor sv;
    rle_status status = supervisor_init(&sv, group, &set);
    if (status == RLE_OK) {
        status = start_members(&sv);
        if (status != RLE_OK) {
            sv.ending = true;
            sv.term_at = sv.kill_at = 0;
            run_timers(&sv);
        }
        while (sv.left > 0 || sink_pending(&sv.sinks[0]) || sink_pending(&sv.sinks[1]))
            turn(&sv);
        if (status == RLE_OK) *result = sv.result;
    }
    supervisor_fini(&sv);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGCHLD, &child_before, NULL);
    return status;
}
