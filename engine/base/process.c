/* process.c - fork, exec, the handoff in a sealed memory file, private folders. */
#include "base/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/world.h"

extern char **environ;

#define MAGIC "rlengine-handoff-1"

/* What a handoff begins with. The parent's pid keeps a grandchild that inherited both the
 * variable and the descriptor from taking itself for the child. */
typedef struct handoff_header {
    char magic[24];
    int64_t parent;
    uint64_t size;
} handoff_header;

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Move a descriptor above the standard three, or dup2 in the child could overwrite it. */
static int above_stdio(int fd)
{
    if (fd < 0 || fd > 2) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int saved = errno;
    close(fd);
    errno = saved;
    return moved;
}

static rle_status write_all(int fd, const void *bytes, size_t size)
{
    const char *p = bytes;
    while (size > 0) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return rle_fail(RLE_RESOURCE_EXHAUSTED, "cannot write %zu bytes to a memory file: %s",
                            size, strerror(errno));
        p += n;
        size -= (size_t)n;
    }
    return RLE_OK;
}

static rle_status new_memory_file(const char *name, int *out)
{
    int fd = above_stdio(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "cannot make a memory file: %s", strerror(errno));
    *out = fd;
    return RLE_OK;
}

static void seal(int fd)
{
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    lseek(fd, 0, SEEK_SET);
}

rle_status rle_memory_file(const char *name, const void *bytes, size_t size, int *out)
{
    int fd;
    RLE_TRY(new_memory_file(name, &fd));
    rle_status status = write_all(fd, bytes, size);
    if (status != RLE_OK) {
        close(fd);
        return status;
    }
    seal(fd);
    *out = fd;
    return RLE_OK;
}

static rle_status handoff_file(const rle_process_spec *spec, int *out)
{
    handoff_header header = {.parent = getpid(), .size = spec->handoff_size};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    int fd;
    RLE_TRY(new_memory_file("rlengine-handoff", &fd));
    rle_status status = write_all(fd, &header, sizeof header);
    if (status == RLE_OK) status = write_all(fd, spec->handoff, spec->handoff_size);
    if (status != RLE_OK) {
        close(fd);
        return status;
    }
    seal(fd);
    *out = fd;
    return RLE_OK;
}

/* A copy of the environment with the handoff variable set to `value`, or without it when
 * value is NULL. One block; free with rle_free. */
static char **environment_with(const char *value)
{
    size_t n = 0;
    while (environ && environ[n]) n++;
    char **copy = rle_malloc((n + 2) * sizeof *copy);
    if (!copy) return NULL;
    size_t prefix = strlen(RLE_HANDOFF_ENV), used = 0;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], RLE_HANDOFF_ENV, prefix) != 0 || environ[i][prefix] != '=')
            copy[used++] = environ[i];
    if (value) copy[used++] = (char *)value;
    copy[used] = NULL;
    return copy;
}

/* Everything the child needs, made before fork. */
typedef struct exec_plan {
    const char *exe;
    const char *const *argv;
    char **envp;
    pid_t parent;
    int stdin_fd, stdout_fd, stderr_fd; /* -1: inherit */
    int handoff;                        /* stays open across exec; -1: none */
    int failure;                        /* errno of a failed exec is written here; CLOEXEC */
} exec_plan;

/* Runs in the child between fork and exec: only calls a signal handler may make. */
static void exec_child(const exec_plan *plan)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != plan->parent) _exit(0); /* it died before the kernel knew */

    if (plan->stdin_fd >= 0 && dup2(plan->stdin_fd, 0) < 0) goto failed;
    if (plan->stdout_fd >= 0 && dup2(plan->stdout_fd, 1) < 0) goto failed;
    if (plan->stderr_fd >= 0 && dup2(plan->stderr_fd, 2) < 0) goto failed;
    /* Files that the script opened before are not the child's business. Old kernels lack
     * the call; then only the engine's own descriptors are sure to be closed. */
#ifdef SYS_close_range
    syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
#endif
    if (plan->handoff >= 0 && fcntl(plan->handoff, F_SETFD, 0) < 0) goto failed;

    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(plan->exe, (char *const *)plan->argv, plan->envp);
failed:;
    int saved = errno;
    ssize_t written = write(plan->failure, &saved, sizeof saved);
    (void)written;
    _exit(127);
}

/* The descriptors that live only until the child runs. */
typedef struct spawn_fds {
    int handoff, null, out[2], err[2], failure[2];
} spawn_fds;

static void close_spawn_fds(spawn_fds *f)
{
    close_fd(&f->handoff);
    close_fd(&f->null);
    for (int i = 0; i < 2; i++) {
        close_fd(&f->out[i]);
        close_fd(&f->err[i]);
        close_fd(&f->failure[i]);
    }
}

static rle_status open_pipe(int fds[2])
{
    int made[2];
    if (pipe2(made, O_CLOEXEC) < 0)
        return rle_fail(RLE_UNAVAILABLE, "cannot make a pipe: %s", strerror(errno));
    fds[0] = above_stdio(made[0]);
    fds[1] = above_stdio(made[1]);
    if (fds[0] < 0 || fds[1] < 0)
        return rle_fail(RLE_UNAVAILABLE, "cannot make a pipe: %s", strerror(errno));
    return RLE_OK;
}

static rle_status open_spawn_fds(const rle_process_spec *spec, spawn_fds *f)
{
    if (spec->handoff) RLE_TRY(handoff_file(spec, &f->handoff));
    if (spec->stdin_fd == -2) {
        f->null = above_stdio(open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (f->null < 0)
            return rle_fail(RLE_UNAVAILABLE, "cannot open /dev/null: %s", strerror(errno));
    }
    if (spec->pipe_output) {
        RLE_TRY(open_pipe(f->out));
        RLE_TRY(open_pipe(f->err));
        fcntl(f->out[0], F_SETFL, O_NONBLOCK);
        fcntl(f->err[0], F_SETFL, O_NONBLOCK);
    }
    return open_pipe(f->failure);
}

static rle_status own_exe(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    if (n <= 0)
        return rle_fail(RLE_UNAVAILABLE, "cannot find the running program: /proc/self/exe: %s",
                        strerror(errno));
    path[n] = 0;
    /* A program that was replaced on disk still runs: start the same one again. */
    if (access(path, X_OK) != 0) snprintf(path, size, "/proc/self/exe");
    return RLE_OK;
}

/* Fork, and learn from the CLOEXEC pipe whether exec worked: end of file says yes. */
static rle_status fork_and_exec(exec_plan *plan, spawn_fds *f, pid_t *out)
{
    sigset_t all, before;
    sigfillset(&all);
    plan->parent = getpid();
    plan->failure = f->failure[1];
    /* No handler of the parent may run in the child. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    int saved = errno;
    if (pid == 0) exec_child(plan);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) return rle_fail(RLE_UNAVAILABLE, "cannot start a process: %s", strerror(saved));

    close_fd(&f->failure[1]);
    int code;
    ssize_t n;
    do n = read(f->failure[0], &code, sizeof code);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof code) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
        return rle_fail(RLE_UNAVAILABLE, "cannot execute %s: %s", plan->exe, strerror(code));
    }
    *out = pid;
    return RLE_OK;
}

rle_status rle_process_start(const rle_process_spec *spec, rle_process *out)
{
    if (rle_simulated()) {
        *out = (rle_process){.pidfd = -1, .out = -1, .err = -1};
        return rle_world_simulated->start(spec, &out->pid);
    }
    spawn_fds f = {-1, -1, {-1, -1}, {-1, -1}, {-1, -1}};
    char exe[4096], variable[64];
    exec_plan plan = {.exe = spec->exe, .argv = spec->argv};
    rle_process p = {.pid = -1, .pidfd = -1, .out = -1, .err = -1};

    rle_status status = RLE_OK;
    if (!plan.exe) {
        status = own_exe(exe, sizeof exe);
        plan.exe = exe;
    }
    if (status == RLE_OK) status = open_spawn_fds(spec, &f);
    if (status == RLE_OK) {
        snprintf(variable, sizeof variable, RLE_HANDOFF_ENV "=%d", f.handoff);
        plan.envp = environment_with(f.handoff >= 0 ? variable : NULL);
        if (!plan.envp) status = rle_oom(sizeof variable, "a process's environment");
    }
    if (status == RLE_OK) {
        plan.handoff = f.handoff;
        plan.stdin_fd = spec->stdin_fd == -2 ? f.null : spec->stdin_fd;
        plan.stdout_fd = f.out[1];
        plan.stderr_fd = f.err[1];
        status = fork_and_exec(&plan, &f, &p.pid);
    }
    if (status == RLE_OK) {
#ifdef SYS_pidfd_open
        p.pidfd = (int)syscall(SYS_pidfd_open, p.pid, 0);
#endif
        p.out = f.out[0];
        p.err = f.err[0];
        f.out[0] = f.err[0] = -1;
        *out = p;
    }
    rle_free(plan.envp);
    close_spawn_fds(&f);
    return status;
}

void rle_process_fini(rle_process *p)
{
    close_fd(&p->pidfd);
    close_fd(&p->out);
    close_fd(&p->err);
}

void rle_process_describe(int wait_status, char *text, size_t size)
{
    if (WIFSIGNALED(wait_status))
        snprintf(text, size, "died (signal %d)", WTERMSIG(wait_status));
    else if (WEXITSTATUS(wait_status) != 0)
        snprintf(text, size, "failed (exit code %d)", WEXITSTATUS(wait_status));
    else
        snprintf(text, size, "ended");
}

int rle_process_exit_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    if (!d) return -1;
    int n = 0;
    struct dirent *e;
    while ((e = readdir(d))) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

rle_status rle_process_usage(rle_usage *out)
{
    int descriptors = count_entries("/proc/self/fd");
    int threads = count_entries("/proc/self/task");
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    bool read = f && fscanf(f, "%*s %ld", &pages) == 1;
    if (f) fclose(f);
    if (descriptors < 0 || threads < 0 || !read)
        return rle_fail(RLE_UNAVAILABLE, "cannot read /proc/self: %s", strerror(errno));
    *out = (rle_usage){descriptors - 1 /* the folder's own */, threads,
                       (size_t)pages * (size_t)sysconf(_SC_PAGESIZE)};
    return RLE_OK;
}

/* ---- the handoff, seen from the child ---- */

static RLE_PER_PROCESS char *handoff_bytes;
static RLE_PER_PROCESS size_t handoff_length;
static RLE_PER_PROCESS bool handoff_looked;

static void handoff_read(int fd)
{
    handoff_header header;
    struct stat st;
    /* Only a sealed memory file can be a handoff; then nobody can change it under us. */
    if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &st) < 0) return;
    if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header) return;
    if (memcmp(header.magic, MAGIC, sizeof MAGIC) != 0 || header.parent != getppid()) return;
    if (header.size != (uint64_t)st.st_size - sizeof header) return;
    char *bytes = rle_malloc(header.size + 1);
    if (!bytes) return;
    if (pread(fd, bytes, header.size, sizeof header) != (ssize_t)header.size) {
        rle_free(bytes);
        return;
    }
    bytes[header.size] = 0;
    handoff_bytes = bytes;
    handoff_length = header.size;
    close(fd);
}

void rle_handoff_give(const char *bytes, size_t size)
{
    handoff_bytes = (char *)bytes;
    handoff_length = size;
    handoff_looked = true;
}

const char *rle_handoff_take(size_t *size)
{
    if (!handoff_looked) {
        handoff_looked = true;
        const char *value = getenv(RLE_HANDOFF_ENV);
        char *end;
        long fd = value ? strtol(value, &end, 10) : -1;
        if (value && end != value && *end == 0 && fd > 2 && fd < 1 << 20) handoff_read((int)fd);
        if (value) unsetenv(RLE_HANDOFF_ENV);
    }
    *size = handoff_length;
    return handoff_bytes;
}

/* ---- private folders ---- */

#define FOLDER_PREFIX "rlengine-run-" /* nothing else is called so: see sweep */

static void remove_files(const char *path)
{
    DIR *d = opendir(path);
    if (d) {
        struct dirent *e;
        while ((e = readdir(d)))
            if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                unlinkat(dirfd(d), e->d_name, 0);
        closedir(d);
    }
    rmdir(path);
}

static int open_folder(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Folders of ours whose lock nobody holds belong to processes that were killed. Those made
 * within the last minute are left alone: their owner may not have locked them yet. */
static void sweep(const char *base)
{
    DIR *d = opendir(base);
    if (!d) return;
    struct dirent *e;
    while ((e = readdir(d))) {
        if (strncmp(e->d_name, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) != 0) continue;
        char path[512];
        struct stat st;
        if (snprintf(path, sizeof path, "%s/%s", base, e->d_name) >= (int)sizeof path) continue;
        if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) continue;
        if ((st.st_mode & 0777) != 0700 || time(NULL) - st.st_mtime < 60) continue;
        int fd = open_folder(path);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) remove_files(path);
        close(fd);
    }
    closedir(d);
}

rle_status rle_private_folder(char *path, size_t size, int *lock_fd)
{
    const char *bases[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp"};
    char made[256];
    int last_error = ENOENT;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        /* 108 bytes hold a unix socket's address with its terminator. */
        if (!bases[i] || bases[i][0] != '/' || strlen(bases[i]) > 107 - 40 - 20) continue;
        snprintf(made, sizeof made, "%s/" FOLDER_PREFIX "XXXXXX", bases[i]);
        if (strlen(made) >= size || !mkdtemp(made)) {
            last_error = errno;
            continue;
        }
        int fd = open_folder(made);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
            last_error = errno;
            if (fd >= 0) close(fd);
            rmdir(made);
            continue;
        }
        sweep(bases[i]);
        memcpy(path, made, strlen(made) + 1);
        *lock_fd = fd;
        return RLE_OK;
    }
    return rle_fail(RLE_UNAVAILABLE,
                    "cannot make a private folder in $XDG_RUNTIME_DIR, $TMPDIR or /tmp: %s",
                    strerror(last_error));
}

void rle_private_folder_remove(const char *path, int lock_fd)
{
    remove_files(path);
    if (lock_fd >= 0) close(lock_fd);
}
