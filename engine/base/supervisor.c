/* supervisor.c - one poll loop over signals, processes and their output. */
#include "base/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lines.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/requests.h"
#include "base/world.h"

/* While more than this waits to be written, pipes are not read: whoever writes faster than
 * the terminal shows waits, as it would without us. */
#define SINK_LIMIT (256 * 1024)
/* Others may end by themselves for this long after a good end before they are asked to. */
#define QUIET_NS 300000000ll
/* So long the cause may take to show after its first consequence has. */
#define CAUSE_NS 200000000ll
/* A primary that ends because it lost a peer may take this long over it. */
#define BLAME_NS 10000000000ll
/* Without pidfds (kernels before 5.3) ended processes are looked for this often. */
#define BLIND_MS 50

typedef struct member_state {
    rle_process process;
    bool running, failed;
    rle_stream out, err;
    /* of secondaries that may be started again */
    rle_restarts restarts;
    int64_t judge_at,
        start_at; /* when it is decided on, and begun again; INT64_MAX = not */
    int64_t failed_at;
    int status;      /* of its last end */
    bool untold;     /* it has ended, and how cannot be found out */
    char killed[64]; /* why it was, on request */
} member_state;

typedef struct supervisor {
    const rle_group *group;
    member_state *members;
    rle_sink sinks[2];
    struct pollfd *polls;
    int signals; /* signalfd */
    rle_requests requests;
    int left;    /* processes still running */

    int suspect, suspect_status; /* member that ended because a peer was lost, or -1 */
    int64_t suspect_at;          /* when it becomes the failure; INT64_MAX = never */

    bool ending;
    int64_t term_at, kill_at; /* rle_now() at which to ask and to kill; INT64_MAX = done */
    rle_group_result result;
} supervisor;

/* A line of ours, behind what was said before. */
static void say(supervisor *sv, const char *fmt, ...) RLE_PRINTF(2, 3);
static void say(supervisor *sv, const char *fmt, ...)
{
    char text[480], line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    int n = snprintf(line, sizeof line, "rlengine: %s\n", text);
    rle_sink_put(&sv->sinks[1], line, (size_t)n);
}

/* ---- the end of the run ---- */

/* Secondaries first: they would take the end of their primary for a loss. */
static void send_all(supervisor *sv, int signal)
{
    for (int primary = 0; primary < 2; primary++)
        for (int i = 0; i < sv->group->count; i++)
            if (sv->members[i].running && sv->group->members[i].primary == primary)
                rle_send_signal(sv->members[i].process.pid, signal);
}

static void begin_ending(supervisor *sv, int64_t quiet)
{
    int64_t now = rle_now();
    sv->ending = true;
    sv->term_at = now + quiet;
    sv->kill_at = now + quiet + sv->group->grace_ns;
}

/* "died (signal 9)", or why we killed it. */
static void describe(const member_state *m, int wait_status, char *what, size_t size)
{
    if (m->untold)
        snprintf(
            what, size,
            "ended, and something else in this process took its exit code (waitpid)");
    else if (m->killed[0] && WIFSIGNALED(wait_status))
        snprintf(what, size, "killed: %s", m->killed);
    else
        rle_process_describe(wait_status, what, size);
}

static void set_failure(supervisor *sv, int index, int wait_status)
{
    const rle_member *m = &sv->group->members[index];
    char what[96];
    describe(&sv->members[index], wait_status, what, sizeof what);
    sv->result.failed = index;
    sv->result.exit_code = rle_process_exit_code(wait_status);
    snprintf(sv->result.message, sizeof sv->result.message, "%s \"%s\" %s", m->role,
             m->name, what);
    begin_ending(sv, 0);
}

/* ---- starting again ---- */

/* It runs, or will again, or has done what it was there for. */
static bool of_use(const member_state *m)
{
    return m->running || m->judge_at != INT64_MAX || m->start_at != INT64_MAX ||
           !m->failed;
}

static bool may_restart(const supervisor *sv, int index)
{
    const rle_member *m = &sv->group->members[index];
    if (m->primary || sv->group->restarts.max <= 0) return false;
    /* What fails before it has ever joined fails again: the script is wrong. */
    return !m->joined || rle_is_there(m->joined);
}

/* It has failed: begin it again later, or give it up. */
static void judge(supervisor *sv, int index)
{
    const rle_group *g = sv->group;
    const rle_member *m = &g->members[index];
    member_state *state = &sv->members[index];
    int64_t now = rle_now(), delay;
    char what[96];
    describe(state, state->status, what, sizeof what);
    state->killed[0] = 0;
    state->judge_at = INT64_MAX;
    if (rle_restarts_failed(&state->restarts, &g->restarts, now, &delay)) {
        state->start_at = now + delay;
        say(sv, "%s \"%s\" %s; restart %d of %d in %.1f s", m->role, m->name, what,
            state->restarts.count, g->restarts.max, (double)delay * 1e-9);
        return;
    }
    say(sv, "%s \"%s\" failed %d times in %g s; giving up on it", m->role, m->name,
        state->restarts.count, (double)g->restarts.within * 1e-9);
    for (int i = 0; i < g->count; i++)
        if (!g->members[i].primary && g->members[i].team == m->team &&
            of_use(&sv->members[i]))
            return;
    set_failure(sv, index, state->status);
}

static void start_again(supervisor *sv, int index);

/* Which of two failures is more likely the cause of the other. */
static int rank(int wait_status)
{
    if (WIFSIGNALED(wait_status)) return 2;
    return WEXITSTATUS(wait_status) != RLE_EXIT_LOST_PEER;
}

/* The secondary whose end is most likely what a primary of that team complains of, or -1.
 */
static int to_blame(const supervisor *sv, int primary)
{
    int found = -1;
    int64_t since = rle_now() - BLAME_NS;
    for (int i = 0; i < sv->group->count; i++) {
        const member_state *m = &sv->members[i];
        if (sv->group->members[i].team != sv->group->members[primary].team) continue;
        if (i == primary || !m->failed_at || m->failed_at < since) continue;
        /* What has ended is seen in no certain order: only one that lost a peer as well must
         * have been first. */
        if (!rank(m->status) && m->failed_at > sv->members[primary].failed_at) continue;
        if (found < 0 || m->failed_at < sv->members[found].failed_at) found = i;
    }
    return found;
}

/* ---- what processes ask for ---- */

static void obey(void *self, char *line)
{
    supervisor *sv = self;
    char *name = strncmp(line, "kill ", 5) == 0 ? line + 5 : NULL;
    char *reason = name ? strchr(name, ' ') : NULL;
    if (!reason || sv->ending) return;
    *reason++ = 0;
    for (int i = 0; i < sv->group->count; i++) {
        member_state *m = &sv->members[i];
        if (sv->group->members[i].primary ||
            strcmp(sv->group->members[i].name, name) != 0)
            continue;
        if (!m->running || m->killed[0]) return;
        snprintf(m->killed, sizeof m->killed, "%s", reason);
        rle_send_signal(m->process.pid, SIGKILL);
    }
}

/* ---- time and signals ---- */

static void run_timers(supervisor *sv)
{
    int64_t now = rle_now();
    if (!sv->ending && now >= sv->suspect_at)
        set_failure(sv, sv->suspect, sv->suspect_status);
    for (int i = 0; i < sv->group->count && !sv->ending; i++) {
        member_state *m = &sv->members[i];
        if (now >= m->judge_at) judge(sv, i);
        if (!sv->ending && now >= m->start_at) start_again(sv, i);
    }
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

/* Every primary (or secondary) has ended with exit code 0, but for those that were given
 * up; false when there is none. */
static bool all_done(const supervisor *sv, bool primary)
{
    int seen = 0;
    for (int i = 0; i < sv->group->count; i++) {
        const member_state *m = &sv->members[i];
        if (sv->group->members[i].primary != primary) continue;
        if (!primary && !of_use(m) && sv->group->restarts.max > 0) continue;
        if (m->running || m->failed) return false;
        seen++;
    }
    return seen > 0;
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
        pid_t pid = rle_collect(m->process.pid, &status);
        if (pid == 0 || (pid < 0 && errno == EINTR)) continue;
        /* ECHILD: a thread of a library waits for every child, or has SIGCHLD ignored.
         * Who may have failed is not taken for one that ended well. */
        m->untold = pid < 0;
        if (m->untold) status = EXIT_FAILURE << 8;
        m->running = false;
        sv->left--;
        any = true;
        /* What it said last comes before what we say of it. A process of its own that still
         * holds the pipe is not waited for. */
        rle_stream_read(&m->out, true);
        rle_stream_read(&m->err, true);
        rle_stream_end(&m->out);
        rle_stream_end(&m->err);
        rle_process_fini(&m->process);
        m->failed = status != 0;
        m->status = status;
        if (!m->failed) continue;
        m->failed_at = rle_now();
        if (!sv->ending && may_restart(sv, i)) {
            /* One that lost a peer may only be the first to say that a primary is gone.
             */
            bool lost = rle_process_exit_code(status) == RLE_EXIT_LOST_PEER;
            m->judge_at = m->failed_at + (lost ? CAUSE_NS : 0);
            continue;
        }
        if (worst < 0 || rank(status) > rank(worst_status)) {
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
    int cause = sv->suspect >= 0 ? to_blame(sv, sv->suspect) : -1;
    if (cause >= 0 && cause != sv->suspect) {
        set_failure(sv, cause, sv->members[cause].status);
        return;
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

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* When something is due. */
static int64_t next_moment(const supervisor *sv)
{
    int64_t at = sv->ending ? earlier(sv->term_at, sv->kill_at) : sv->suspect_at;
    for (int i = 0; i < sv->group->count && !sv->ending; i++)
        at = earlier(at, earlier(sv->members[i].judge_at, sv->members[i].start_at));
    return sv->left == 0 && sv->ending ? INT64_MAX : at;
}

static int poll_timeout(const supervisor *sv, bool blind)
{
    int64_t at = next_moment(sv), ms = -1;
    if (at != INT64_MAX) {
        ms = (at - rle_now() + 999999) / 1000000;
        if (ms < 0) ms = 0;
    }
    if (blind && (ms < 0 || ms > BLIND_MS)) ms = BLIND_MS;
    return (int)ms;
}

static void simulated_turn(supervisor *sv)
{
    char line[256];
    if (sv->left) rle_world_simulated->rest(next_moment(sv));
    while (sv->group->requests &&
           rle_world_simulated->asked(sv->group->requests, line, sizeof line))
        obey(sv, line);
    reap(sv);
    run_timers(sv);
    for (int i = 0; i < 2; i++)
        while (rle_sink_pending(&sv->sinks[i])) rle_sink_write(&sv->sinks[i]);
}

static void turn(supervisor *sv)
{
    int n = 0;
    bool blind = false;
    poll_add(sv, &n, sv->signals, POLLIN);
    poll_add(sv, &n, sv->requests.fd, POLLIN);
    for (int i = 0; i < 2; i++)
        if (rle_sink_pending(&sv->sinks[i])) poll_add(sv, &n, sv->sinks[i].fd, POLLOUT);
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
    if (sv->requests.fd >= 0 && was_ready(sv, n, sv->requests.fd))
        rle_requests_read(&sv->requests, obey, sv);
    for (int i = 0; i < sv->group->count; i++) {
        member_state *m = &sv->members[i];
        if (m->out.fd >= 0 && was_ready(sv, n, m->out.fd))
            rle_stream_read(&m->out, false);
        if (m->err.fd >= 0 && was_ready(sv, n, m->err.fd))
            rle_stream_read(&m->err, false);
    }
    reap(sv);
    run_timers(sv);
    for (int i = 0; i < 2; i++)
        if (rle_sink_pending(&sv->sinks[i]) && was_ready(sv, n, sv->sinks[i].fd))
            rle_sink_write(&sv->sinks[i]);
}

/* ---- start ---- */

static rle_status start_member(supervisor *sv, int index, int source)
{
    const rle_member *m = &sv->group->members[index];
    member_state *state = &sv->members[index];
    rle_process_spec spec = {
        .name = m->name,
        .exe = sv->group->exe,
        .argv = sv->group->argv,
        .handoff = m->handoff,
        .handoff_size = m->handoff_size,
        .stdin_fd = source >= 0     ? source
                    : m->keep_stdin ? -1
                                    : -2,
        .pipe_output = m->prefix,
    };
    RLE_TRY(rle_process_start(&spec, &state->process));
    state->running = true;
    sv->left++;
    RLE_TRY(rle_stream_init(&state->out, state->process.out, &sv->sinks[0], m->name));
    return rle_stream_init(&state->err, state->process.err, &sv->sinks[1], m->name);
}

/* Every process reads a file of its own: those that share one would share the position.
 */
static rle_status start_with_source(supervisor *sv, int index)
{
    int source = -1;
    if (sv->group->source)
        RLE_TRY(rle_memory_file("rlengine-source", sv->group->source,
                                sv->group->source_size, &source));
    rle_status status = start_member(sv, index, source);
    if (source >= 0) close(source);
    return status;
}

static rle_status start_members(supervisor *sv)
{
    for (int i = 0; i < sv->group->count; i++) RLE_TRY(start_with_source(sv, i));
    return RLE_OK;
}

/* That there is no process to be had now counts as a failure, too. */
static void start_again(supervisor *sv, int index)
{
    member_state *m = &sv->members[index];
    m->start_at = INT64_MAX;
    m->failed = false;
    if (start_with_source(sv, index) == RLE_OK) return;
    const rle_member *member = &sv->group->members[index];
    say(sv, "%s \"%s\": %s", member->role, member->name, rle_message());
    if (m->running) {
        rle_send_signal(m->process.pid, SIGKILL);
        return;
    }
    m->failed = true;
    judge(sv, index);
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
                       .requests = {.fd = -1},
                       .suspect = -1,
                       .suspect_at = INT64_MAX,
                       .result = {.failed = -1}};
    sv->sinks[0].fd = STDOUT_FILENO;
    sv->sinks[1].fd = STDERR_FILENO;
    size_t polls = 4 + 3 * (size_t)group->count;
    sv->members = rle_calloc((size_t)group->count, sizeof *sv->members);
    if (!sv->members) return rle_oom((size_t)group->count * sizeof *sv->members, "a group");
    for (int i = 0; i < group->count; i++) {
        sv->members[i].process = (rle_process){-1, -1, -1, -1};
        sv->members[i].out.fd = sv->members[i].err.fd = -1;
        sv->members[i].judge_at = sv->members[i].start_at = INT64_MAX;
    }
    for (int i = 0; i < group->count; i++)
        RLE_TRY(rle_restarts_init(&sv->members[i].restarts, &group->restarts));
    sv->polls = rle_calloc(polls, sizeof *sv->polls);
    if (!sv->polls) return rle_oom(polls * sizeof *sv->polls, "a group");
    sv->signals = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (sv->signals < 0)
        return rle_fail(RLE_UNAVAILABLE, "cannot watch signals: %s", strerror(errno));
    if (!group->requests || rle_simulated()) return RLE_OK;
    return rle_requests_open(&sv->requests, group->requests);
}

static void supervisor_fini(supervisor *sv)
{
    for (int i = 0; sv->members && i < sv->group->count; i++) {
        rle_process_fini(&sv->members[i].process);
        rle_free(sv->members[i].out.line);
        rle_free(sv->members[i].err.line);
        rle_restarts_fini(&sv->members[i].restarts);
    }
    rle_free(sv->members);
    rle_free(sv->polls);
    rle_free(sv->sinks[0].bytes);
    rle_free(sv->sinks[1].bytes);
    if (sv->signals >= 0) close(sv->signals);
    rle_requests_close(&sv->requests);
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
        while (sv.left > 0 || rle_sink_pending(&sv.sinks[0]) ||
               rle_sink_pending(&sv.sinks[1]))
            rle_simulated() ? simulated_turn(&sv) : turn(&sv);
        if (status == RLE_OK) *result = sv.result;
    }
    supervisor_fini(&sv);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGCHLD, &child_before, NULL);
    return status;
}
