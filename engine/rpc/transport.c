/* transport.c - sockets: addresses, listening, connecting, reading and writing. */
#include "rpc/transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/world.h"

/* ---- the socket filling ---- */

/* glibc's recv and send are cancellation points, which costs in a process with a second
 * thread; nobody cancels threads here. */
static ssize_t receive(int fd, void *to, size_t n)
{
    return syscall(SYS_recvfrom, fd, to, n, 0, NULL, NULL);
}

static ssize_t transmit(int fd, const void *from, size_t n)
{
    return syscall(SYS_sendto, fd, from, n, MSG_NOSIGNAL, NULL, 0);
}

static ssize_t socket_readv(rle_transport *t, const struct iovec *iov, int n)
{
    if (rle_simulated()) return rle_sim_readv(t->fd, iov, n);
    ssize_t got;
    if (rle_fault_io(ECONNRESET)) return -1;
    do {
        got = n == 1 ? receive(t->fd, iov[0].iov_base, iov[0].iov_len) : readv(t->fd, iov, n);
    } while (got < 0 && errno == EINTR);
    return got;
}

static ssize_t socket_writev(rle_transport *t, const struct iovec *iov, int n)
{
    if (rle_simulated()) return rle_sim_writev(t->fd, iov, n);
    ssize_t put;
    if (rle_fault_io(ENOBUFS)) return -1;
    do {
        if (n == 1) {
            put = transmit(t->fd, iov[0].iov_base, iov[0].iov_len);
        } else {
            struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
            put = sendmsg(t->fd, &m, MSG_NOSIGNAL);
        }
    } while (put < 0 && errno == EINTR);
    return put;
}

static void socket_close(rle_transport *t)
{
    rle_close(t->fd);
    t->fd = -1;
}

const rle_transport_ops rle_socket_transport = {
    .name = "socket", .readv = socket_readv, .writev = socket_writev, .close = socket_close};

static int new_socket(int family)
{
    if (rle_fault_io(EMFILE)) return -1;
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* ---- addresses ---- */

static rle_status bad_address(const char *text, const char *why)
{
    return rle_fail(RLE_INVALID_ARGUMENT,
                    "address \"%.100s\": %s; write unix:/path, tcp://host:port or "
                    "tcp://[ipv6]:port",
                    text, why);
}

static rle_status parse_unix(const char *text, const char *path, rle_address *out)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n == 0) return bad_address(text, "the path is missing");
    if (n >= sizeof un.sun_path)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "address \"%.110s\": the path has %zu bytes, a Unix socket's path holds "
                        "%zu",
                        text, n, sizeof un.sun_path - 1);
    memcpy(un.sun_path, path, n + 1);
    rle_address_from_sockaddr((struct sockaddr *)&un,
                              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1), out);
    return RLE_OK;
}

rle_status rle_address_split(const char *text, rle_address *out,
                             char host[RLE_ADDRESS_MAX], char service[8])
{
    host[0] = 0;
    if (strncmp(text, "unix:", 5) == 0) return parse_unix(text, text + 5, out);
    const char *rest = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text;
    if (strstr(rest, "://")) return bad_address(text, "unknown kind");
    const char *colon = strrchr(rest, ':');
    if (!colon) return bad_address(text, "the port is missing");
    size_t n = (size_t)(colon - rest);
    if (n == 0) return bad_address(text, "the host is missing");
    if (n >= RLE_ADDRESS_MAX) return bad_address(text, "the host's name is too long");
    char *end;
    long port = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || *end || port < 0 || port > 65535)
        return bad_address(text, "the port is no number from 0 to 65535");
    if (rest[0] == '[') {
        if (rest[n - 1] != ']') return bad_address(text, "the bracket is not closed");
        rest++;
        n -= 2;
        if (n == 0) return bad_address(text, "the host is missing");
    } else if (memchr(rest, ':', n)) {
        return bad_address(text, "an IPv6 address needs brackets");
    }
    memcpy(host, rest, n);
    host[n] = 0;
    snprintf(service, 8, "%ld", port);
    return RLE_OK;
}

static bool loopback(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *a = &((const struct sockaddr_in6 *)sa)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(a)) return a->s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(a);
}

void rle_address_from_sockaddr(const struct sockaddr *sa, socklen_t len, rle_address *out)
{
    memset(out, 0, sizeof *out);
    memcpy(&out->sa, sa, len);
    out->len = len;
    if (sa->sa_family == AF_UNIX) {
        const char *path = ((const struct sockaddr_un *)sa)->sun_path;
        bool named = len > offsetof(struct sockaddr_un, sun_path);
        out->is_unix = out->is_loopback = true;
        snprintf(out->text, sizeof out->text, "unix:%.108s", named ? path : "");
        memcpy(out->shown, out->text, sizeof out->shown);
        return;
    }
    char host[INET6_ADDRSTRLEN] = "?";
    unsigned port;
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        port = ntohs(in->sin_port);
        snprintf(out->shown, sizeof out->shown, "%s:%u", host, port);
    } else {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)sa;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        port = ntohs(in->sin6_port);
        snprintf(out->shown, sizeof out->shown, "[%s]:%u", host, port);
    }
    snprintf(out->text, sizeof out->text, "tcp://%.100s", out->shown);
    out->is_loopback = loopback(sa);
}

static bool every_address(const rle_address *at)
{
    if (at->is_unix) return false;
    if (at->sa.ss_family == AF_INET)
        return ((const struct sockaddr_in *)&at->sa)->sin_addr.s_addr ==
               htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&at->sa)->sin6_addr);
}

bool rle_address_seen(const rle_address *at, int fd, char out[RLE_ADDRESS_MAX])
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    rle_address here = *at;
    if (every_address(at) && !rle_simulated()) {
        /* Its own end of the connection; over a Unix socket there is none. */
        if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0 ||
            sa.ss_family != at->sa.ss_family)
            return false;
        if (sa.ss_family == AF_INET)
            ((struct sockaddr_in *)&sa)->sin_port =
                ((const struct sockaddr_in *)&at->sa)->sin_port;
        else
            ((struct sockaddr_in6 *)&sa)->sin6_port =
                ((const struct sockaddr_in6 *)&at->sa)->sin6_port;
        rle_address_from_sockaddr((struct sockaddr *)&sa, len, &here);
    }
    memcpy(out, here.text, sizeof here.text);
    return true;
}

rle_status rle_address_allowed(const rle_address *at, bool insecure_network, const char *doing)
{
    if (at->is_loopback || insecure_network) return RLE_OK;
    return rle_fail(RLE_FAILED_PRECONDITION,
                    "refusing to %s %s without tls; use a loopback address, set tls, or set "
                    "insecure_network=true",
                    doing, at->shown);
}

/* ---- listening ---- */

/* The folder of a socket must be ours alone: whoever can enter it can connect. */
static rle_status private_folder(const rle_address *at)
{
    char folder[RLE_ADDRESS_MAX];
    const char *path = ((const struct sockaddr_un *)&at->sa)->sun_path;
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (!folder[0]) snprintf(folder, sizeof folder, "/");
    struct stat st;
    if (stat(folder, &st) != 0) {
        if (errno != ENOENT || mkdir(folder, 0700) != 0 || stat(folder, &st) != 0)
            return rle_fail(RLE_FAILED_PRECONDITION, "cannot listen on %s: %s: %s", at->shown,
                            folder, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return rle_fail(RLE_FAILED_PRECONDITION,
                        "refusing to listen on %s: others can enter %s (mode %04o); use a folder "
                        "of your own with mode 0700",
                        at->shown, folder, st.st_mode & 07777);
    return RLE_OK;
}

/* Nobody answers at a socket's path: a process died without removing it. */
static bool stale(const rle_address *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    int rc = connect(fd, (const struct sockaddr *)&at->sa, at->len);
    bool dead = rc < 0 && errno == ECONNREFUSED;
    close(fd);
    return dead;
}

static int bind_private(int fd, const rle_address *at)
{
    mode_t before = umask(077);
    int rc = bind(fd, (const struct sockaddr *)&at->sa, at->len);
    int why = errno;
    umask(before);
    errno = why;
    return rc;
}

rle_status rle_listen(const rle_address *at, bool insecure_network, int *out,
                      rle_address *bound)
{
    if (!at->is_unix)
        RLE_TRY(rle_address_allowed(at, insecure_network, "listen on"));
    else if (!rle_simulated())
        RLE_TRY(private_folder(at));
    if (rle_simulated()) {
        int simulated = rle_sim_listen(at, bound);
        if (simulated < 0)
            return rle_fail(RLE_UNAVAILABLE, "cannot listen on %s: address already in use",
                            at->shown);
        *out = simulated;
        return RLE_OK;
    }
    int fd = new_socket(at->sa.ss_family);
    if (fd < 0)
        return rle_fail(RLE_UNAVAILABLE, "cannot listen on %s: %s", at->shown, strerror(errno));
    int rc;
    if (at->is_unix) {
        rc = bind_private(fd, at);
        if (rc < 0 && errno == EADDRINUSE && stale(at)) {
            unlink(((const struct sockaddr_un *)&at->sa)->sun_path);
            rc = bind_private(fd, at);
        }
    } else {
        int on = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (at->sa.ss_family == AF_INET6)
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
        rc = bind(fd, (const struct sockaddr *)&at->sa, at->len);
    }
    if (rc == 0) rc = rle_fault_io(ENOBUFS) ? -1 : listen(fd, 1024);
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    if (rc == 0) rc = getsockname(fd, (struct sockaddr *)&sa, &len);
    if (rc < 0) {
        int why = errno;
        char holder[96] = "";
        close(fd);
        if (why == EADDRINUSE) rle_address_holder(at, holder, sizeof holder);
        return rle_fail(RLE_UNAVAILABLE, "cannot listen on %s: %s%s", at->shown,
                        why == EADDRINUSE ? "address already in use" : strerror(why),
                        holder);
    }
    if (at->is_unix)
        *bound = *at;
    else
        rle_address_from_sockaddr((struct sockaddr *)&sa, len, bound);
    *out = fd;
    return RLE_OK;
}

void rle_unlisten(int fd, const rle_address *at)
{
    rle_close(fd);
    if (at->is_unix && !rle_simulated())
        unlink(((const struct sockaddr_un *)&at->sa)->sun_path);
}

int rle_accept(int listener, rle_address *peer)
{
    if (rle_simulated()) return rle_sim_accept(listener, peer);
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    if (rle_fault_io(EMFILE)) return -1;
    int fd = accept4(listener, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return -1;
    rle_address_from_sockaddr((struct sockaddr *)&sa, len, peer);
    return fd;
}

void rle_close(int fd)
{
    if (rle_simulated())
        rle_sim_close(fd);
    else
        close(fd);
}

/* ---- connecting ---- */

rle_status rle_connect(const rle_address *to, int *out, bool *pending)
{
    bool simulated = rle_simulated();
    int fd = simulated ? rle_sim_connect(to, pending) : new_socket(to->sa.ss_family);
    int rc = fd;
    if (!simulated && fd >= 0)
        rc = rle_fault_io(ECONNREFUSED)
                 ? -1
                 : connect(fd, (const struct sockaddr *)&to->sa, to->len);
    if (rc < 0 && (fd < 0 || errno != EINPROGRESS)) {
        int why = errno;
        if (fd >= 0) close(fd);
        rle_fail(RLE_UNAVAILABLE, "cannot connect to %s: %s", to->shown, strerror(why));
        errno = why;
        return RLE_UNAVAILABLE;
    }
    if (!simulated) *pending = rc < 0;
    *out = fd;
    return RLE_OK;
}

int rle_connect_error(int fd)
{
    if (rle_simulated()) return rle_sim_connect_error(fd);
    int why = 0;
    socklen_t len = sizeof why;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len);
    return why;
}

void rle_socket_tune(int fd, bool is_unix)
{
    if (is_unix || rle_simulated()) return;
    int on = 1, idle = 10, interval = 5, count = 3;
    unsigned unacknowledged_ms = 20000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

bool rle_peer_credentials(int fd, pid_t *pid, uid_t *uid)
{
    if (rle_simulated()) return rle_sim_credentials(fd, pid, uid), true;
    struct ucred cred;
    socklen_t len = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) return false;
    *pid = cred.pid;
    *uid = cred.uid;
    return true;
}
