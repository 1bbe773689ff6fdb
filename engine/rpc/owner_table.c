/* owner_table.c - whose process is at the other end of a TCP connection within this
 * machine, where the kernel has no sock_diag (owner.c): from the table of all sockets
 * that netstat(8) reads.
 *
 * Its length is that of everybody's sockets, so reading it is bounded: one look takes
 * LONGEST at most, and all of them a tenth of the time. Who comes more often is not
 * looked up, and counts as one of whom nothing is known.
 *
 * Threads: what was spent is of the process, and read and written without a lock. That
 * two threads may add at once makes the bound a little wider. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "rpc/rpc_internal.h"

#define LONGEST (20 * RLE_SECONDS / 1000)
#define SAVED (2 * RLE_SECONDS) /* of the time nothing was spent in, so much counts */
enum { SHARE = 10 };

enum { LINE_MAX_SIZE = 512, READ_SIZE = 16 << 10, ADDRESS_SIZE = 40 };

/* That others ran meanwhile is not our time. */
static int64_t time_of_thread(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return rle_now();
    return t.tv_sec * RLE_SECONDS + t.tv_nsec;
}

/* ---- addresses as the table has them ---- */

/* The words of the address as numbers of this machine, and the port. */
static void write_address(const void *address, size_t size, in_port_t port,
                          char out[ADDRESS_SIZE])
{
    uint32_t words[4];
    size_t n = size / sizeof *words, at = 0;
    memcpy(words, address, size);
    for (size_t i = 0; i < n; i++, at += 8)
        snprintf(out + at, ADDRESS_SIZE - at, "%08X", words[i]);
    snprintf(out + at, ADDRESS_SIZE - at, ":%04X", ntohs(port));
}

static const struct in6_addr *address6(const struct sockaddr_storage *from)
{
    return &((const struct sockaddr_in6 *)from)->sin6_addr;
}

static void write_either(const struct sockaddr_storage *from, char out[ADDRESS_SIZE])
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)from;
    if (from->ss_family == AF_INET)
        write_address(&in->sin_addr, sizeof in->sin_addr, in->sin_port, out);
    else
        write_address(address6(from), sizeof(struct in6_addr),
                      ((const struct sockaddr_in6 *)from)->sin6_port, out);
}

/* The same for a socket of the other kind, where there may be one: one of IPv6 has an address of
 * IPv4 as well. */
static bool write_other(const struct sockaddr_storage *from, char out[ADDRESS_SIZE])
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)from;
    struct in6_addr mapped = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    if (from->ss_family == AF_INET) {
        memcpy(mapped.s6_addr + 12, &in->sin_addr, sizeof in->sin_addr);
        write_address(&mapped, sizeof mapped, in->sin_port, out);
        return true;
    }
    if (!IN6_IS_ADDR_V4MAPPED(address6(from))) return false;
    write_address(address6(from)->s6_addr + 12, 4,
                  ((const struct sockaddr_in6 *)from)->sin6_port, out);
    return true;
}

/* ---- reading ---- */

/* A line: "  0: 0100007F:9C40 0100007F:7349 01 00000000:00000000 00:00000000 00000000
 * 1000        0 31337 ...": what comes first is a number, then the addresses of the
 * socket and of its other end, state, queues, timer, retransmissions; the user, timeouts
 * and the inode. */
static bool line_tells(const char *line, const char *ends, size_t ends_size,
                       rle_end_owner *found, uid_t *uid)
{
    unsigned long user, inode;
    const char *at = strchr(line, ':');
    if (!at) return false;
    at += 1 + strspn(at + 1, " ");
    if (strncmp(at, ends, ends_size) != 0) return false;
    if (sscanf(at + ends_size, " %*x %*x:%*x %*x:%*x %*x %lu %*d %lu", &user, &inode) !=
        2)
        return false;
    /* One that its process has closed belongs to nobody, and says root. */
    *found = inode ? RLE_OWNER_TOLD : RLE_OWNER_NONE;
    if (inode) *uid = (uid_t)user;
    return true;
}

/* `theirs`, `mine`: the ends of the connection. */
static rle_end_owner look(const char *path, const char *theirs, const char *mine,
                          int64_t until, uid_t *uid)
{
    char ends[2 * ADDRESS_SIZE + 2], bytes[READ_SIZE + 1];
    size_t ends_size = (size_t)snprintf(ends, sizeof ends, "%s %s ", theirs, mine);
    size_t have = 0;
    ssize_t got = 0;
    int fd = rle_fault_io(EMFILE) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return RLE_OWNER_UNKNOWN;
    rle_end_owner found = RLE_OWNER_NONE;
    bool told = false;
    while (!told && (got = read(fd, bytes + have, READ_SIZE - have)) > 0) {
        have += (size_t)got;
        bytes[have] = 0;
        char *line = bytes, *end;
        for (; !told && (end = memchr(line, '\n', (size_t)(bytes + have - line)));
             line = end + 1) {
            *end = 0;
            told = line_tells(line, ends, ends_size, &found, uid);
        }
        have = (size_t)(bytes + have - line);
        if (have > LINE_MAX_SIZE || time_of_thread() > until)
            break; /* no such table; too long */
        memmove(bytes, line, have);
    }
    close(fd);
    return told || got == 0 ? found : RLE_OWNER_UNKNOWN;
}

rle_end_owner rle_socket_owner_in_table(const struct sockaddr_storage *theirs,
                                        const struct sockaddr_storage *mine, uid_t *uid)
{
    static _Atomic int64_t paid_until; /* with all that was spent, times SHARE */
    int64_t now = rle_now(), began = time_of_thread();
    int64_t paid = atomic_load_explicit(&paid_until, memory_order_relaxed);
    if (paid > now) return RLE_OWNER_UNKNOWN;
    if (paid < now - SAVED) paid = now - SAVED;
    char from[ADDRESS_SIZE], to[ADDRESS_SIZE];
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    int kind = mine->ss_family == AF_INET6;
    write_either(theirs, from);
    write_either(mine, to);
    rle_end_owner found = look(tables[kind], from, to, began + LONGEST, uid);
    /* A kernel without IPv6 has no table of it. */
    if (found == RLE_OWNER_NONE && write_other(theirs, from) && write_other(mine, to) &&
        access(tables[!kind], F_OK) == 0)
        found = look(tables[!kind], from, to, began + LONGEST, uid);
    atomic_store_explicit(&paid_until, paid + SHARE * (time_of_thread() - began),
                          memory_order_relaxed);
    return found;
}
