/* process.h - start a process of this program by fork and exec, and pass it a message that
 * neither `ps` nor its environment shows.
 *
 * Safe at any time, also after threads or a GPU are in use: between fork and exec the child
 * calls only what signal handlers may call, and exec leaves nothing of the parent behind.
 * A started process dies with the parent, also when the parent is killed with SIGKILL: the
 * kernel is told so before exec, and a parent that was gone by then is noticed.
 *
 * Ownership: rle_process owns its descriptors until rle_process_fini. The thread that
 * starts a process must live as long as the process: the kernel ties the death to it. */
#ifndef RLE_BASE_PROCESS_H
#define RLE_BASE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

/* What this process holds now. */
typedef struct rle_usage {
    int descriptors, threads;
    size_t resident; /* bytes */
} rle_usage;

/* UNAVAILABLE without /proc. */
rle_status rle_process_usage(rle_usage *out);

/* The environment variable that carries the number of the handoff descriptor. */
#define RLE_HANDOFF_ENV "RLENGINE_HANDOFF_FD"

typedef struct rle_process_spec {
    const char *name;     /* in a simulation; may be NULL elsewhere */
    const char *exe;      /* path of the program; NULL: the running program's own */
    const char *const *argv;   /* NULL-ended */
    const void *handoff;  /* bytes that rle_handoff_take returns in the child; may be NULL */
    size_t handoff_size;
    int stdin_fd;         /* becomes standard input; -1: the parent's; -2: /dev/null */
    bool pipe_output;     /* standard output and error become pipes to the parent */
} rle_process_spec;

typedef struct rle_process {
    pid_t pid;
    int pidfd;    /* readable when the process has ended; -1 where the kernel has none */
    int out, err; /* non-blocking read ends, -1 without pipe_output */
} rle_process;

/* UNAVAILABLE when the program cannot be executed or the system has no more processes or
 * descriptors; every descriptor opened on the way is closed again. */
rle_status rle_process_start(const rle_process_spec *spec, rle_process *out);

/* Close the descriptors. The process itself goes on. */
void rle_process_fini(rle_process *p);

/* "died (signal 9)", "failed (exit code 3)" or "ended", from a waitpid status. */
void rle_process_describe(int wait_status, char *text, size_t size);

/* What a shell says of that status: the exit code, or 128 + signal. */
int rle_process_exit_code(int wait_status);

/* A descriptor (CLOEXEC) of a memory file that holds `size` bytes and is positioned at its
 * start. Nobody can change what is in it. */
rle_status rle_memory_file(const char *name, const void *bytes, size_t size, int *fd);

/* In a started process: the bytes of the handoff and their number, or NULL when this process
 * was not started by rle_process_start of its parent. The first call reads and closes the
 * descriptor and clears the environment variable, so that processes the script starts do
 * not take themselves for this one. Valid until the process ends. */
const char *rle_handoff_take(size_t *size);

/* In a simulated process, which nobody handed over to: this is what the next call of
 * rle_handoff_take returns. Borrowed. */
void rle_handoff_give(const char *bytes, size_t size);

/* A folder that only this user can enter, in $XDG_RUNTIME_DIR, $TMPDIR or /tmp. The path must
 * leave room for a file name of 40 bytes in a unix socket's address. It is locked for as long
 * as this process lives; folders of processes that were killed are removed on the way. */
rle_status rle_private_folder(char *path, size_t size, int *lock_fd);

/* Remove the folder and the files in it (no folders inside), and close lock_fd. */
void rle_private_folder_remove(const char *path, int lock_fd);

#endif
