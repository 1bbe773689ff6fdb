/* supervisor.h - run a group of processes of this program until one side is done or
 * fails.
 *
 * The group has primaries (trainers) and secondaries (observers). The run ends
 *   - well, when every primary has ended with exit code 0;
 *   - well, when every secondary has and `secondaries_finish` is set;
 *   - badly, when any process dies or ends with another code: the first one counts, and
 *     a process that died of a signal counts before one that failed in the same instant
 *     (the second is then most likely the consequence of the first); an exit code of
 *     RLE_EXIT_LOST_PEER says that another process was lost, so it counts only when no
 *     other failure follows at once;
 *   - by the user, with SIGINT (Ctrl-C), SIGTERM or SIGHUP to this process.
 * With `restarts` a secondary that has joined once and fails is started again instead,
 * later each time. One that fails too often is given up; when nobody of a team (the
 * secondaries of one primary) is left, the last failure ends the run badly. A primary
 * that ends because it lost a peer points at a secondary that has failed just before:
 * that one is blamed.
 *
 * Processes can ask for a secondary's end through the named pipe `requests`, with a line
 * "kill NAME REASON": it is killed, which counts as a failure of it, and the reason is
 * said.
 *
 * Then every process that is left is asked with SIGTERM, and after `grace_ns` killed with
 * SIGKILL; a second signal kills at once. After a good end the others get a moment to
 * end by themselves first, because they hear of it from their peers.
 *
 * Lines of processes with `prefix` go through this process and come out whole, with the
 * name in front. The others share this process's standard output and error.
 *
 * A process whose exit code somebody else in this process has taken (waitpid for every
 * child, SIGCHLD ignored meanwhile) counts as failed: nobody knows that it ended well.
 *
 * Nothing polls: the calling thread sleeps in poll(2) until a process, a pipe or a signal
 * has something to say. It must be the process's main thread, or the signals may go to
 * another. The signal mask is put back as it was. */
#ifndef RLE_BASE_SUPERVISOR_H
#define RLE_BASE_SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/restart.h"
#include "base/status.h"

/* Exit code of a process that cannot go on because one it talked to is gone (EX_UNAVAILABLE). */
enum { RLE_EXIT_LOST_PEER = 69 };

typedef struct rle_member {
    const char *name;    /* "obs_0_for_0" */
    const char *role;    /* "observer", for messages */
    const void *handoff; /* see rle_process_spec */
    size_t handoff_size;
    bool primary, prefix;
    bool keep_stdin; /* reads this process's standard input; otherwise /dev/null */
    int team;
    const char
        *joined; /* of a secondary: a file that is there once it has joined, or NULL */
} rle_member;

typedef struct rle_group {
    const char *exe;    /* NULL: the running program */
    const char *const *argv; /* NULL-ended, the same for all */
    const void *source; /* what every process reads as its standard input; NULL: see member */
    size_t source_size;
    const rle_member *members;
    int count;
    int64_t grace_ns;
    bool secondaries_finish;
    rle_restart_policy restarts; /* of secondaries */
    const char *requests;        /* path of a named pipe to make, or NULL */
} rle_group;

typedef struct rle_group_result {
    int exit_code;     /* 0, or what a shell would say of the first failure or the signal */
    int failed;        /* member that failed first, or -1 */
    int signal;        /* signal that ended the run, sent to this process; or 0 */
    char message[256]; /* `observer "obs_0_for_0" died (signal 9)`; "" after a good end */
} rle_group_result;

/* Ask whoever runs a group (its `requests`) to kill a secondary. A reason of one line;
 * together they fit into 256 bytes. UNAVAILABLE when nobody listens there. */
rle_status rle_group_ask_kill(const char *requests, const char *name, const char *reason);

/* Start the group and return when no process of it is left, also on failure: UNAVAILABLE
 * when a process cannot be started (those that were are killed again). */
rle_status rle_group_run(const rle_group *group, rle_group_result *result);

#endif
