/* owner.c - whose process is at the other end of a TCP connection within this machine.
 *
 * At a Unix socket the kernel tells that of every connection. Here it is asked for the
 * other socket by its addresses, through the interface that ss(8) uses: one question and
 * one answer, however many sockets there are. Where there is no such interface (a kernel
 * without it, a container that forbids it) the table of all sockets is read instead
 * (owner_table.c). */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>

#include "base/fault.h"
#include "rpc/rpc_internal.h"

typedef struct ends {
    struct sockaddr_storage mine, theirs;
} ends;

typedef struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 of;
} question;

static void copy_address(const struct sockaddr_storage *from, __be32 to[4], __be16 *port)
{
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        memcpy(to, &in->sin_addr, sizeof in->sin_addr);
        *port = in->sin_port;
    } else {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)from;
        memcpy(to, &in->sin6_addr, sizeof in->sin6_addr);
        *port = in->sin6_port;
    }
}

static bool ends_of(int fd, ends *e)
{
    socklen_t mine_len = sizeof e->mine, theirs_len = sizeof e->theirs;
    return getsockname(fd, (struct sockaddr *)&e->mine, &mine_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&e->theirs, &theirs_len) == 0 &&
           e->mine.ss_family == e->theirs.ss_family &&
           (e->mine.ss_family == AF_INET || e->mine.ss_family == AF_INET6);
}

/* Both ends are here: a loopback address, or our own one at the other end, too. */
static bool within_machine(const ends *e)
{
    __be32 mine[4] = {0}, theirs[4] = {0};
    __be16 port;
    copy_address(&e->mine, mine, &port);
    copy_address(&e->theirs, theirs, &port);
    if (memcmp(mine, theirs, sizeof mine) == 0) return true;
    struct in6_addr in;
    memcpy(&in, theirs, sizeof in);
    if (e->theirs.ss_family == AF_INET) return ntohl(theirs[0]) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&in) ||
           (IN6_IS_ADDR_V4MAPPED(&in) && in.s6_addr[12] == 127);
}

/* The owner of the socket `of` that is connected to `to`. UNKNOWN: nobody answers such
 * questions. NONE: there is none, or nobody can say, which sounds the same. */
static rle_end_owner ask(const struct sockaddr_storage *of,
                         const struct sockaddr_storage *to, uid_t *uid)
{
    union {
        struct nlmsghdr head;
        uint8_t bytes[2048];
    } answer;
    question q = {
        .head = {.nlmsg_len = sizeof q,
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST},
        .of = {.sdiag_family = (uint8_t)of->ss_family,
               .sdiag_protocol = IPPROTO_TCP,
               .idiag_states = UINT32_MAX,
               .id = {.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    copy_address(of, q.of.id.idiag_src, &q.of.id.idiag_sport);
    copy_address(to, q.of.id.idiag_dst, &q.of.id.idiag_dport);
    if (rle_fault_io(EPROTONOSUPPORT)) return RLE_OWNER_UNKNOWN;
    int asked =
        socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
    if (asked < 0) return RLE_OWNER_UNKNOWN;
    /* The kernel answers before send(2) returns. */
    ssize_t got = send(asked, &q, sizeof q, 0) == (ssize_t)sizeof q
                      ? recv(asked, &answer, sizeof answer, 0)
                      : -1;
    close(asked);
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr))) return RLE_OWNER_UNKNOWN;
    if (answer.head.nlmsg_type == NLMSG_ERROR) {
        const struct nlmsgerr *why = NLMSG_DATA(&answer.head);
        return why->error == -ENOENT ? RLE_OWNER_NONE : RLE_OWNER_UNKNOWN;
    }
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg)) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return RLE_OWNER_UNKNOWN;
    const struct inet_diag_msg *found = NLMSG_DATA(&answer.head);
    /* A socket that its process has closed belongs to nobody, and says root. One that is
     * shut down for sending may wait for our answer, and has its owner. */
    if (!found->idiag_inode) return RLE_OWNER_NONE;
    *uid = found->idiag_uid;
    return RLE_OWNER_TOLD;
}

rle_end_owner rle_socket_owner(int fd, uid_t *uid)
{
    ends e;
    uid_t ours;
    if (rle_simulated() || !ends_of(fd, &e)) return RLE_OWNER_NONE;
    rle_end_owner found = ask(&e.theirs, &e.mine, uid);
    /* A kernel that cannot look says "none", too. Ours is there for certain. */
    if (found == RLE_OWNER_NONE && within_machine(&e) &&
        ask(&e.mine, &e.theirs, &ours) != RLE_OWNER_TOLD)
        found = RLE_OWNER_UNKNOWN;
    if (found != RLE_OWNER_UNKNOWN) return found;
    if (!within_machine(&e)) return RLE_OWNER_NONE;
    return rle_socket_owner_in_table(&e.theirs, &e.mine, uid);
}
