/* auth.c - reading tokens strictly, and the proofs. */
#include "rpc/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/context.h"
#include "base/world.h"

/* "~/x" for a path under the home folder. */
static void show_path(const char *path, char *out, size_t size)
{
    const char *home = getenv("HOME");
    size_t n = home ? strlen(home) : 0;
    if (n > 1 && strncmp(path, home, n) == 0 && path[n] == '/')
        snprintf(out, size, "~%s", path + n);
    else
        snprintf(out, size, "%s", path);
}

rle_status rle_token_from_bytes(const void *bytes, size_t len, const char *source,
                                rle_token *out)
{
    if (len == 0) return rle_fail(RLE_UNAUTHENTICATED, "the token in %s is empty", source);
    if (len < RLE_TOKEN_MIN)
        return rle_fail(RLE_UNAUTHENTICATED,
                        "the token in %s has %zu bytes; it needs at least %d random ones", source,
                        len, RLE_TOKEN_MIN);
    if (len > RLE_TOKEN_MAX)
        return rle_fail(RLE_UNAUTHENTICATED, "the token in %s has more than %d bytes", source,
                        RLE_TOKEN_MAX);
    memcpy(out->bytes, bytes, len);
    out->len = len;
    snprintf(out->source, sizeof out->source, "%s", source);
    return RLE_OK;
}

/* The line end behind a token that is text is no part of it; a binary token may well end in
 * such a byte. */
static size_t without_line_end(const uint8_t *bytes, size_t len)
{
    size_t text = len;
    while (text && (bytes[text - 1] == '\n' || bytes[text - 1] == '\r')) text--;
    for (size_t i = 0; i < text; i++)
        if (bytes[i] < ' ' || bytes[i] > '~') return len;
    return text;
}

static rle_status read_all(int fd, const char *source, rle_token *out)
{
    uint8_t bytes[RLE_TOKEN_MAX + 8];
    size_t len = 0;
    while (len < sizeof bytes) {
        ssize_t n = read(fd, bytes + len, sizeof bytes - len);
        if (n < 0 && errno == EINTR && !rle_interrupted) continue;
        if (n < 0 && errno == EINTR) return rle_fail(RLE_CANCELLED, "interrupted");
        if (n < 0)
            return rle_fail(RLE_UNAUTHENTICATED, "cannot read the token in %s: %s", source,
                            strerror(errno));
        if (n == 0) break;
        len += (size_t)n;
    }
    len = without_line_end(bytes, len);
    rle_status s = rle_token_from_bytes(bytes, len, source, out);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return s;
}

rle_status rle_private_file(const char *what, const char *path, rle_status code,
                            char *shown, size_t size, int *out)
{
    show_path(path, shown, size);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return rle_fail(code, "cannot read the %s file %s: %s", what, shown,
                        strerror(errno));
    struct stat st;
    rle_status s = RLE_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        s = rle_fail(code, "%s file %s is not a file", what, shown);
    else if (st.st_mode & 077)
        s = rle_fail(code, "%s file %s can be read by others (mode %04o); chmod 600 it",
                     what, shown, st.st_mode & 07777);
    else if (st.st_uid != geteuid() && st.st_uid != 0)
        s = rle_fail(code, "%s file %s belongs to user %u, not to you", what, shown,
                     (unsigned)st.st_uid);
    if (s != RLE_OK) {
        close(fd);
        return s;
    }
    *out = fd;
    return RLE_OK;
}

rle_status rle_token_from_file(const char *path, rle_token *out)
{
    char shown[160];
    int fd;
    RLE_TRY(
        rle_private_file("token", path, RLE_UNAUTHENTICATED, shown, sizeof shown, &fd));
    rle_status s = read_all(fd, shown, out);
    close(fd);
    return s;
}

rle_status rle_token_from_fd(int fd, rle_token *out)
{
    char source[32];
    snprintf(source, sizeof source, "descriptor %d", fd);
    rle_status s = read_all(fd, source, out);
    close(fd);
    return s;
}

rle_status rle_token_default(rle_token *out)
{
    const char *named = getenv("RLENGINE_TOKEN_FILE");
    if (named && named[0]) return rle_token_from_file(named, out);
    char path[512];
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config && config[0])
        snprintf(path, sizeof path, "%s/rlengine/token", config);
    else if (home && home[0])
        snprintf(path, sizeof path, "%s/.config/rlengine/token", home);
    else
        return rle_fail(RLE_UNAUTHENTICATED,
                        "no token: set RLENGINE_TOKEN_FILE, or give token_file");
    return rle_token_from_file(path, out);
}

rle_status rle_token_create(const char *path)
{
    uint8_t random[32];
    char text[2 * sizeof random + 2];
    RLE_TRY(rle_random_bytes(random, sizeof random));
    for (size_t i = 0; i < sizeof random; i++) snprintf(text + 2 * i, 3, "%02x", random[i]);
    text[2 * sizeof random] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return rle_fail(errno == EEXIST ? RLE_ALREADY_EXISTS : RLE_FAILED_PRECONDITION,
                        "cannot create the token file %s: %s", path, strerror(errno));
    ssize_t put = write(fd, text, 2 * sizeof random + 1);
    int rc = close(fd);
    OPENSSL_cleanse(random, sizeof random);
    OPENSSL_cleanse(text, sizeof text);
    if (put == (ssize_t)(2 * sizeof random + 1) && rc == 0) return RLE_OK;
    int why = errno;
    unlink(path);
    return rle_fail(RLE_FAILED_PRECONDITION, "cannot write the token file %s: %s", path,
                    strerror(why));
}

void rle_token_forget(rle_token *t)
{
    OPENSSL_cleanse(t, sizeof *t);
}

rle_status rle_random_bytes(void *out, size_t n)
{
    return rle_entropy(out, n);
}

rle_status rle_auth_proof(const rle_token *token, char role, const void *hello,
                          size_t hello_len, const void *ack, size_t ack_len,
                          uint8_t out[RLE_PROOF_SIZE])
{
    rle_writer w;
    rle_writer_init(&w);
    rle_write_bytes(&w, "rlengine1", 9);
    rle_write_u8(&w, (uint8_t)role);
    rle_write_u32(&w, (uint32_t)hello_len);
    rle_write_bytes(&w, hello, hello_len);
    rle_write_u32(&w, (uint32_t)ack_len);
    rle_write_bytes(&w, ack, ack_len);
    rle_status s = rle_writer_status(&w, "handshake");
    unsigned len = 0;
    if (s == RLE_OK && (!HMAC(EVP_sha256(), token->bytes, (int)token->len, w.data, w.len, out,
                              &len) ||
                        len != RLE_PROOF_SIZE))
        s = rle_fail(RLE_INTERNAL, "HMAC-SHA256 is not available");
    rle_writer_fini(&w);
    return s;
}

bool rle_auth_equal(const uint8_t a[RLE_PROOF_SIZE], const uint8_t b[RLE_PROOF_SIZE])
{
    return CRYPTO_memcmp(a, b, RLE_PROOF_SIZE) == 0;
}

bool rle_auth_same(const void *a, const void *b, size_t n)
{
    return CRYPTO_memcmp(a, b, n) == 0;
}
