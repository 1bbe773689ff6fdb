/* owner.c - whose process is at the other end of a TCP connection within this machine.
 *
 * At a Unix socket the kernel tells that of every connection. Here it is asked for the
 * other socket by its addresses, through the interface that ss(8) uses: one question and
 * one answer, however many sockets there are. */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>

#include "rpc/rpc_internal.h"

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

static bool ask(int fd, question *q)
{
    struct sockaddr_storage mine, theirs;
    socklen_t mine_len = sizeof mine, theirs_len = sizeof theirs;
    if (getsockname(fd, (struct sockaddr *)&mine, &mine_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&theirs, &theirs_len) != 0 ||
        mine.ss_family != theirs.ss_family ||
        (mine.ss_family != AF_INET && mine.ss_family != AF_INET6))
        return false;
    memset(q, 0, sizeof *q);
    q->head.nlmsg_len = sizeof *q;
    q->head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    q->head.nlmsg_flags = NLM_F_REQUEST;
    q->of.sdiag_family = (uint8_t)mine.ss_family;
    q->of.sdiag_protocol = IPPROTO_TCP;
    q->of.idiag_states = UINT32_MAX;
    q->of.id.idiag_cookie[0] = q->of.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    /* Seen from the other end. */
    copy_address(&theirs, q->of.id.idiag_src, &q->of.id.idiag_sport);
    copy_address(&mine, q->of.id.idiag_dst, &q->of.id.idiag_dport);
    return true;
}

bool rle_socket_owner(int fd, uid_t *uid)
{
    union {
        struct nlmsghdr head;
        uint8_t bytes[2048];
    } answer;
    question q;
    if (rle_simulated() || !ask(fd, &q)) return false;
    int asked =
        socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
    if (asked < 0) return false;
    /* The kernel answers before send(2) returns. */
    ssize_t got = send(asked, &q, sizeof q, 0) == (ssize_t)sizeof q
                      ? recv(asked, &answer, sizeof answer, 0)
                      : -1;
    close(asked);
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg)) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return false;
    const struct inet_diag_msg *found = NLMSG_DATA(&answer.head);
    /* A socket that its process has closed belongs to nobody, and says root. One that is
     * shut down for sending may wait for our answer, and has its owner. */
    if (!found->idiag_inode) return false;
    *uid = found->idiag_uid;
    return true;
}
