/* transport.h - addresses, and a byte stream behind a small table.
 *
 * Sockets are one filling of the table; TLS and a simulated network are others. Everything
 * is non-blocking and close-on-exec, and no write raises SIGPIPE. */
#ifndef RLE_RPC_TRANSPORT_H
#define RLE_RPC_TRANSPORT_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/status.h"
#include "base/world.h"
#include "rpc/codec.h"

typedef struct rle_transport rle_transport;

typedef struct rle_transport_ops {
    const char *name;
    /* Bytes read into `n` blocks; 0 at the end of the stream; -1 with errno, EAGAIN when
     * there is nothing now. */
    ssize_t (*readv)(rle_transport *t, const struct iovec *iov, int n);
    /* Bytes taken, perhaps fewer than given; -1 with errno, EAGAIN when full. */
    ssize_t (*writev)(rle_transport *t, const struct iovec *iov, int n);
    /* Give the descriptor back; `t` is not used again. */
    void (*close)(rle_transport *t);

    /* Only of fillings that shake hands; NULL elsewhere. */

    /* Go on with it as far as what came allows. On failure the message says why. */
    rle_status (*shake)(rle_transport *t, bool *done);
    /* The last read may have left something behind, while the descriptor stays silent. */
    bool (*pending)(const rle_transport *t);
    /* Bytes of what writev took that wait for room in the socket. writev of no blocks
     * moves them on. */
    size_t (*unsent)(const rle_transport *t);
    /* After an errno of EPROTO: what was wrong; sets the message, too. */
    rle_status (*failure)(const rle_transport *t);
} rle_transport_ops;

struct rle_transport {
    const rle_transport_ops *ops;
    int fd;     /* what the event loop watches */
    void *self; /* of the filling */
};

extern const rle_transport_ops rle_socket_transport;

/* ---- addresses ---- */

typedef struct rle_address {
    char text[RLE_ADDRESS_MAX]; /* as a user writes it: unix:/path, tcp://127.0.0.1:29500 */
    char shown[RLE_ADDRESS_MAX]; /* in messages: unix:/path, 127.0.0.1:29500 */
    char host[RLE_ADDRESS_MAX]; /* as the user wrote it, a name or a number; "" for a path
                                 */
    bool is_unix, is_loopback;
    struct sockaddr_storage sa;
    socklen_t len;
} rle_address;

/* "unix:/path", "tcp://host:port", "host:port"; IPv6 in brackets. Host names are looked
 * up (lookup.h tells how not to wait for that). INVALID_ARGUMENT with what is wrong. */
rle_status rle_address_parse(const char *text, rle_address *out);
/* The same, but a host's name is an error: nothing is asked for and waited for. */
rle_status rle_address_read(const char *text, rle_address *out);
/* Without looking up: host and port of it; of a Unix socket *out, and "" for the host. */
rle_status rle_address_split(const char *text, rle_address *out,
                             char host[RLE_ADDRESS_MAX], char service[8]);
void rle_address_from_sockaddr(const struct sockaddr *sa, socklen_t len, rle_address *out);

/* A listening socket. A Unix socket needs a folder nobody else can enter (made with mode
 * 0700 when it is missing) and takes the place of a dead one. `bound` gets the real port.
 * UNAVAILABLE: address in use; FAILED_PRECONDITION: open to others. */
rle_status rle_listen(const rle_address *at, bool insecure_network, int *fd,
                      rle_address *bound);
/* Who listens at an address that is in use: " by pid 4242 (rlengine)", or "" when /proc
 * does not tell. */
void rle_address_holder(const rle_address *at, char *out, size_t size);
/* Where others find the listener `at`, as the other end of the connection `fd` sees it:
 * an address of this machine in place of 0.0.0.0 or [::]. False: not at all. */
bool rle_address_seen(const rle_address *at, int fd, char out[RLE_ADDRESS_MAX]);
/* FAILED_PRECONDITION unless the address is of this machine or `insecure_network`. */
rle_status rle_address_allowed(const rle_address *at, bool insecure_network,
                               const char *doing);

/* Start to connect: *pending tells that the socket becomes writable when it is decided.
 * UNAVAILABLE when it fails at once; errno says why. */
rle_status rle_connect(const rle_address *to, int *fd, bool *pending);

/* Then: 0, or the errno of what went wrong. */
int rle_connect_error(int fd);
/* Stop listening; the file of a Unix socket goes. */
void rle_unlisten(int fd, const rle_address *at);

/* The filling of a simulation (sim_net.c): descriptors of its own, used as those of the
 * system calls; errno says what went wrong. */
int rle_sim_listen(const rle_address *at, rle_address *bound);
int rle_sim_connect(const rle_address *to, bool *pending);
int rle_sim_connect_error(int fd);
int rle_sim_accept(int listener, rle_address *peer);
ssize_t rle_sim_readv(int fd, const struct iovec *iov, int n);
ssize_t rle_sim_writev(int fd, const struct iovec *iov, int n);
void rle_sim_close(int fd);
void rle_sim_credentials(int fd, pid_t *pid, uid_t *uid);

/* A new connection of a listener: descriptor with the flags above, or -1 and errno. */
int rle_accept(int listener, rle_address *peer);
/* Give back a descriptor that no connection was made of. */
void rle_close(int fd);

/* Options of every stream socket: no delay, keepalive, a limit on unacknowledged data. */
void rle_socket_tune(int fd, bool is_unix);

/* Process and user at the other end of a Unix socket. */
bool rle_peer_credentials(int fd, pid_t *pid, uid_t *uid);

#endif
