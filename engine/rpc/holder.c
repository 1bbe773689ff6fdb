/* holder.c - who listens at an address that is taken, as far as /proc tells. */
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/transport.h"

/* So many descriptors of others are looked at, some 50 ms: a big machine has more. */
enum { SEARCH_LIMIT = 20000 };

/* Inode of the socket that listens at the port, in /proc/net/tcp or tcp6; 0: none. At
 * which of the machine's addresses is of no matter: we could not have it. */
static unsigned long listener_inode(const char *table, unsigned port)
{
    char line[256];
    unsigned long found = 0;
    FILE *f = fopen(table, "re");
    if (!f) return 0;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned local, state;
        unsigned long inode;
        /* sl local:port remote:port state queues timer retransmissions user timeout inode
         */
        if (sscanf(line,
                   " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu",
                   &local, &state, &inode) == 3 &&
            local == port && state == 0x0a)
            found = inode;
    }
    fclose(f);
    return found;
}

static bool holds(const char *pid, const char *want, int *looked)
{
    char path[300], link[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *d = opendir(path);
    if (!d) return false; /* somebody else's process, or gone */
    for (const struct dirent *e; !found && (e = readdir(d));) {
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, e->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        ++*looked;
        if (n <= 0) continue;
        link[n] = 0;
        found = strcmp(link, want) == 0;
    }
    closedir(d);
    return found;
}

static pid_t process_with_socket(unsigned long inode)
{
    char want[64];
    pid_t found = 0;
    int looked = 0;
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    DIR *d = opendir("/proc");
    if (!d) return 0;
    for (const struct dirent *e; !found && looked < SEARCH_LIMIT && (e = readdir(d));)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && holds(e->d_name, want, &looked))
            found = (pid_t)strtol(e->d_name, NULL, 10);
    closedir(d);
    return found;
}

static pid_t listener_at(const rle_address *at)
{
    if (at->is_unix) {
        /* Whoever listens there is told by the kernel. */
        pid_t pid = 0;
        uid_t uid;
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) return 0;
        if (connect(fd, (const struct sockaddr *)&at->sa, at->len) != 0 ||
            !rle_peer_credentials(fd, &pid, &uid))
            pid = 0;
        close(fd);
        return pid;
    }
    bool six = at->sa.ss_family == AF_INET6;
    unsigned port = ntohs(six ? ((const struct sockaddr_in6 *)&at->sa)->sin6_port
                              : ((const struct sockaddr_in *)&at->sa)->sin_port);
    unsigned long inode = listener_inode(six ? "/proc/net/tcp6" : "/proc/net/tcp", port);
    /* A socket of IPv6 may hold the port for both. */
    if (!inode) inode = listener_inode(six ? "/proc/net/tcp" : "/proc/net/tcp6", port);
    return inode ? process_with_socket(inode) : 0;
}

void rle_address_holder(const rle_address *at, char *out, size_t size)
{
    char path[64], program[64] = "";
    out[0] = 0;
    pid_t pid = listener_at(at);
    if (pid <= 0) return;
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *f = fopen(path, "re");
    if (f && fgets(program, sizeof program, f)) program[strcspn(program, "\n")] = 0;
    if (f) fclose(f);
    if (program[0])
        snprintf(out, size, " by pid %d (%s)", (int)pid, program);
    else
        snprintf(out, size, " by pid %d", (int)pid);
}
